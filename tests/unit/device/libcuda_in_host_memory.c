/* A libcuda.so.1 in host memory, so that CudaDevice runs through the real cuda-python where there is no GPU.
 *
 * It has the calls that CudaDevice makes and no others. Streams run eagerly; GPU memory is a memfd per allocation,
 * mapped into reserved addresses, unreadable until cuMemSetAccess. It is strict: what a real driver refuses or leaves
 * undefined is refused, and fake_num_live() says how many things were made and not given back.
 * FAKE_CUDA_VERSION (13000 unless set) is the driver's version: cuMemcpyBatchAsync is there from 12080 on, with one
 * more argument before 13000.
 *
 * The one kernel that it can run has parameters (u64 address, u32 value) and stores the value there.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500,
       ALREADY_REGISTERED = 712, NOT_REGISTERED = 713, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901,
       CAPTURE_WRONG_THREAD = 908 };
enum { FILE_DESCRIPTOR = 1 };
#define GRANULARITY (2UL << 20)
#define MAX_THINGS 4096
#define DEVICE_BYTES (1UL << 30)

typedef enum { NONE, RANGE, ALLOCATION, MAPPING, REGISTRATION, STREAM, EVENT, MODULE } Kind;
typedef struct { Kind kind; uintptr_t address; size_t num_bytes; int file, has_access, handle_type; uintptr_t handle; } Thing;

static Thing things[MAX_THINGS];
static int retained, was_initialised;
static __thread int pushed; /* each thread has a stack of contexts of its own */
static size_t used_bytes;

/* Rules of captures, as cuThreadExchangeStreamCaptureMode has them. */
enum { GLOBAL = 0, RELAXED = 2 };
static void *captured;
static int capture_mode, is_capture_valid;
static pthread_t capture_thread;
static __thread int mode_of_thread;

/* For calls that are not enqueued on a stream: whether a capture forbids them; then it is invalid from now on. */
static int is_prohibited(void) {
    if (!captured || mode_of_thread == RELAXED) return 0;
    int is_own = pthread_equal(capture_thread, pthread_self());
    int forbids = is_own ? capture_mode != RELAXED : mode_of_thread == GLOBAL && capture_mode == GLOBAL;
    if (forbids) is_capture_valid = 0;
    return forbids;
}
#define UNLESS_CAPTURING if (is_prohibited()) return CAPTURE_UNSUPPORTED

static Thing *add(Kind kind, uintptr_t address, size_t num_bytes) {
    for (int i = 0; i < MAX_THINGS; i++)
        if (things[i].kind == NONE) {
            things[i] = (Thing){kind, address, num_bytes, -1, 0, 0, 0};
            return &things[i];
        }
    abort();
}

static Thing *at(Kind kind, uintptr_t address) {
    for (int i = 0; i < MAX_THINGS; i++)
        if (things[i].kind == kind && things[i].address == address) return &things[i];
    return NULL;
}

static Thing *around(Kind kind, uintptr_t beg, size_t num_bytes) {
    for (int i = 0; i < MAX_THINGS; i++)
        if (things[i].kind == kind && things[i].address <= beg &&
            beg + num_bytes <= things[i].address + things[i].num_bytes)
            return &things[i];
    return NULL;
}

static int overlaps(Kind kind, uintptr_t beg, size_t num_bytes) {
    for (int i = 0; i < MAX_THINGS; i++)
        if (things[i].kind == kind && beg < things[i].address + things[i].num_bytes &&
            things[i].address < beg + num_bytes)
            return 1;
    return 0;
}

static Thing *object(Kind kind, void *handle) {
    Thing *thing = handle;
    return thing >= things && thing < things + MAX_THINGS && thing->kind == kind ? thing : NULL;
}

/* All of [beg, beg + num_bytes) can be copied as one piece: one registration, or mapped granules of one range. */
static int is_copyable(uintptr_t beg, size_t num_bytes) {
    if (around(REGISTRATION, beg, num_bytes)) return 1;
    if (!around(RANGE, beg, num_bytes)) return 0;
    for (uintptr_t granule = beg & ~(GRANULARITY - 1); granule < beg + num_bytes; granule += GRANULARITY) {
        Thing *mapping = around(MAPPING, granule, 1);
        if (!mapping || !mapping->has_access) return 0;
    }
    return 1;
}

static int is_stream(void *stream) { return (uintptr_t)stream <= 2 ? pushed > 0 : object(STREAM, stream) != NULL; }

int fake_num_live(void) {
    int count = retained;
    for (int i = 0; i < MAX_THINGS; i++) count += things[i].kind != NONE;
    return count;
}

static int version(void) {
    const char *text = getenv("FAKE_CUDA_VERSION");
    return text ? atoi(text) : 13000;
}

static int cuInit(unsigned flags) { was_initialised = 1; return flags ? INVALID_VALUE : OK; }
static int cuDriverGetVersion(int *v) { *v = version(); return OK; }
static int cuDeviceGetCount(int *count) { *count = 1; return was_initialised ? OK : 3; }
static int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? 101 : OK; }
static int cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "Host Memory"); return OK; }
static int cuDeviceGetPCIBusId(char *id, int length, int device) { snprintf(id, length, "0000:3B:00.0"); return OK; }
static int cuDeviceGetAttribute(int *value, int attribute, int device) {
    /* VMM, file descriptors and GPUDirect RDMA supported; compute capability 9.0 */
    *value = attribute == 102 || attribute == 103 || attribute == 110 ? 1 : attribute == 75 ? 9 : 0;
    return OK;
}
static int cuDeviceTotalMem(size_t *num_bytes, int device) { *num_bytes = DEVICE_BYTES; return OK; }
static int cuGetErrorName(int error, const char **text) {
    *text = error == INVALID_VALUE   ? "CUDA_ERROR_INVALID_VALUE"
            : error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                     : NULL;
    return *text ? OK : INVALID_VALUE;
}
static int cuGetErrorString(int error, const char **text) {
    *text = error == INVALID_VALUE ? "invalid argument" : error == OUT_OF_MEMORY ? "out of memory" : NULL;
    return *text ? OK : INVALID_VALUE;
}
static int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &retained; retained++; return OK; }
static int cuDevicePrimaryCtxRelease(int device) { return retained-- > 0 ? OK : INVALID_CONTEXT; }
static int cuCtxPushCurrent(void *context) { pushed++; return context == &retained && retained ? OK : INVALID_CONTEXT; }
static int cuCtxPopCurrent(void **context) { *context = &retained; return pushed-- > 0 ? OK : INVALID_CONTEXT; }
static int cuCtxGetCurrent(void **context) { *context = pushed ? &retained : NULL; return OK; }
static int cuCtxGetDevice(int *device) { *device = 0; return pushed ? OK : INVALID_CONTEXT; }
static int cuCtxSynchronize(void) { UNLESS_CAPTURING; return pushed ? OK : INVALID_CONTEXT; }

typedef struct { int type, id; } Location;
typedef struct { int type, handle_types; Location location; void *win32; unsigned char flags[8]; } Properties;
typedef struct { Location location; int flags; } Access;

static int cuMemGetAllocationGranularity(size_t *num_bytes, const Properties *p, int option) {
    *num_bytes = GRANULARITY;
    return p->type == 1 && p->location.type == 1 && p->location.id == 0 && option == 0 ? OK : INVALID_VALUE;
}
static int cuMemAddressReserve(uintptr_t *address, size_t num_bytes, size_t alignment, uintptr_t hint,
                               unsigned long long flags) {
    if (num_bytes % GRANULARITY || !num_bytes || hint || flags || (alignment & (alignment - 1))) return INVALID_VALUE;
    size_t padded = num_bytes + (alignment > GRANULARITY ? alignment : GRANULARITY);
    if (padded < num_bytes) return OUT_OF_MEMORY;
    char *beg = mmap(NULL, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (beg == MAP_FAILED) return OUT_OF_MEMORY;
    uintptr_t mask = (alignment > GRANULARITY ? alignment : GRANULARITY) - 1;
    *address = ((uintptr_t)beg + mask) & ~mask;
    if (*address > (uintptr_t)beg) munmap(beg, *address - (uintptr_t)beg);
    uintptr_t end = (uintptr_t)beg + padded;
    if (end > *address + num_bytes) munmap((void *)(*address + num_bytes), end - *address - num_bytes);
    add(RANGE, *address, num_bytes);
    return OK;
}
static int cuMemAddressFree(uintptr_t address, size_t num_bytes) {
    Thing *range = at(RANGE, address);
    if (!range || range->num_bytes != num_bytes || overlaps(MAPPING, address, num_bytes)) return INVALID_VALUE;
    munmap((void *)address, num_bytes);
    range->kind = NONE;
    return OK;
}
static int cuMemCreate(unsigned long long *handle, size_t num_bytes, const Properties *p, unsigned long long flags) {
    UNLESS_CAPTURING;
    if (num_bytes % GRANULARITY || !num_bytes || flags) return INVALID_VALUE;
    if (p->type != 1 || p->location.type != 1 || p->location.id) return INVALID_VALUE;
    if (p->flags[1] != 1) return INVALID_VALUE; /* GPUDirect RDMA: supported, so it is asked for */
    if (used_bytes + num_bytes > DEVICE_BYTES) return OUT_OF_MEMORY;
    int file = memfd_create("gpu", 0);
    if (file < 0 || ftruncate(file, num_bytes)) return OUT_OF_MEMORY;
    Thing *allocation = add(ALLOCATION, 0, num_bytes);
    allocation->file = file;
    allocation->handle_type = p->handle_types;
    used_bytes += num_bytes;
    *handle = (uintptr_t)allocation;
    return OK;
}
static int cuMemRelease(unsigned long long handle) {
    UNLESS_CAPTURING;
    Thing *allocation = object(ALLOCATION, (void *)(uintptr_t)handle);
    if (!allocation) return INVALID_VALUE;
    for (int i = 0; i < MAX_THINGS; i++) /* a real driver would wait for the unmapping; CudaDevice unmaps first */
        if (things[i].kind == MAPPING && things[i].handle == handle) return INVALID_VALUE;
    close(allocation->file);
    used_bytes -= allocation->num_bytes;
    allocation->kind = NONE;
    return OK;
}
static int cuMemMap(uintptr_t address, size_t num_bytes, size_t offset, unsigned long long handle,
                    unsigned long long flags) {
    UNLESS_CAPTURING;
    Thing *allocation = object(ALLOCATION, (void *)(uintptr_t)handle);
    if (!allocation || allocation->num_bytes != num_bytes) return INVALID_VALUE;
    if (offset || flags || address % GRANULARITY) return INVALID_VALUE;
    if (!around(RANGE, address, num_bytes) || overlaps(MAPPING, address, num_bytes)) return INVALID_VALUE;
    void *mapped = mmap((void *)address, num_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, allocation->file, 0);
    if (mapped == MAP_FAILED) return OUT_OF_MEMORY;
    add(MAPPING, address, num_bytes)->handle = handle;
    return OK;
}
/* Whether [address, address + num_bytes) is whole mappings, side by side. */
static int is_whole_mappings(uintptr_t address, size_t num_bytes) {
    uintptr_t position = address;
    while (position < address + num_bytes) {
        Thing *mapping = at(MAPPING, position);
        if (!mapping) return 0;
        position += mapping->num_bytes;
    }
    return position == address + num_bytes;
}
static int cuMemSetAccess(uintptr_t address, size_t num_bytes, const Access *access, size_t count) {
    UNLESS_CAPTURING;
    if (count != 1 || access->location.type != 1 || access->location.id || access->flags != 3) return INVALID_VALUE;
    if (!is_whole_mappings(address, num_bytes)) return INVALID_VALUE;
    if (mprotect((void *)address, num_bytes, PROT_READ | PROT_WRITE)) return OUT_OF_MEMORY;
    for (int i = 0; i < MAX_THINGS; i++)
        if (things[i].kind == MAPPING && things[i].address >= address && things[i].address < address + num_bytes)
            things[i].has_access = 1;
    return OK;
}
static int cuMemUnmap(uintptr_t address, size_t num_bytes) {
    UNLESS_CAPTURING;
    if (!is_whole_mappings(address, num_bytes)) return INVALID_VALUE;
    mmap((void *)address, num_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    for (int i = 0; i < MAX_THINGS; i++)
        if (things[i].kind == MAPPING && things[i].address >= address && things[i].address < address + num_bytes)
            things[i].kind = NONE;
    return OK;
}
static int cuMemExportToShareableHandle(void *exported, unsigned long long handle, int type, unsigned long long flags) {
    Thing *allocation = object(ALLOCATION, (void *)(uintptr_t)handle);
    if (!allocation || type != FILE_DESCRIPTOR || allocation->handle_type != type || flags) return INVALID_VALUE;
    *(int *)exported = dup(allocation->file);
    return *(int *)exported < 0 ? OUT_OF_MEMORY : OK;
}
static int cuMemHostRegister(void *p, size_t num_bytes, unsigned flags) {
    UNLESS_CAPTURING;
    if (!pushed) return INVALID_CONTEXT;
    if (flags != 3 || !num_bytes) return INVALID_VALUE;
    if (overlaps(REGISTRATION, (uintptr_t)p, num_bytes)) return ALREADY_REGISTERED;
    *(volatile char *)p = *(volatile char *)p; /* must be writable memory */
    add(REGISTRATION, (uintptr_t)p, num_bytes);
    return OK;
}
static int cuMemHostUnregister(void *p) {
    UNLESS_CAPTURING;
    Thing *registration = at(REGISTRATION, (uintptr_t)p);
    if (!pushed) return INVALID_CONTEXT;
    if (!registration) return NOT_REGISTERED;
    registration->kind = NONE;
    return OK;
}

static int cuStreamCreate(void **stream, unsigned flags) {
    if (!pushed || flags != 1) return INVALID_VALUE;
    *stream = add(STREAM, 0, 0);
    return OK;
}
static int destroy(Kind kind, void *handle) {
    Thing *thing = object(kind, handle);
    if (!pushed || !thing) return INVALID_HANDLE;
    thing->kind = NONE;
    return OK;
}
static int cuStreamDestroy(void *stream) { return destroy(STREAM, stream); }
static int cuStreamSynchronize(void *stream) { UNLESS_CAPTURING; return is_stream(stream) ? OK : INVALID_HANDLE; }
static int cuStreamQuery(void *stream) { UNLESS_CAPTURING; return is_stream(stream) ? OK : INVALID_HANDLE; }
static int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    return is_stream(stream) && object(EVENT, event) && !flags ? OK : INVALID_HANDLE;
}
static int cuEventCreate(void **event, unsigned flags) {
    if (!pushed || (flags != 2 && flags != 0)) return INVALID_VALUE;
    *event = add(EVENT, 0, 0);
    return OK;
}
static int cuEventDestroy(void *event) { return destroy(EVENT, event); }
static int cuEventRecord(void *event, void *stream) {
    return object(EVENT, event) && is_stream(stream) ? OK : INVALID_HANDLE;
}
static int cuEventQuery(void *event) { UNLESS_CAPTURING; return object(EVENT, event) ? OK : INVALID_HANDLE; }
static int cuEventElapsedTime(float *milliseconds, void *begin, void *end) {
    *milliseconds = 0.5f;
    return object(EVENT, begin) && object(EVENT, end) ? OK : INVALID_HANDLE;
}
static int cuEventSynchronize(void *event) { UNLESS_CAPTURING; return object(EVENT, event) ? OK : INVALID_HANDLE; }

/* Streams are eager, so the wait is one here and now; for a flag that nobody raises it is an error. The driver has both calls in
 * this form from 11.7 on, whatever the GPU; FAKE_CUDA_WORDS=0 is a machine where it says that it cannot (some virtual ones). */
static int has_words(void) {
    const char *text = getenv("FAKE_CUDA_WORDS");
    return !text || strcmp(text, "0");
}
static int cuStreamWaitValue32(void *stream, uintptr_t address, unsigned value, unsigned flags) {
    if (!has_words()) return NOT_SUPPORTED;
    if (!is_stream(stream) || flags || address % 4 || !around(REGISTRATION, address, 4)) return INVALID_VALUE;
    for (int i = 0; i < 1000000; i++) {
        if ((int)(*(volatile unsigned *)address - value) >= 0) return OK;
        usleep(10);
    }
    return INVALID_VALUE;
}
static int cuStreamWriteValue32(void *stream, uintptr_t address, unsigned value, unsigned flags) {
    if (!has_words()) return NOT_SUPPORTED;
    if (!is_stream(stream) || flags || address % 4 || !around(REGISTRATION, address, 4)) return INVALID_VALUE;
    *(volatile unsigned *)address = value;
    return OK;
}
static int cuThreadExchangeStreamCaptureMode(int *mode) {
    int before = mode_of_thread;
    if (*mode < 0 || *mode > 2) return INVALID_VALUE;
    mode_of_thread = *mode;
    *mode = before;
    return OK;
}
/* One capture at a time. What is enqueued on its stream does not run, and the graph is no graph. */
static int cuStreamBeginCapture_v2(void *stream, int mode) {
    if (!object(STREAM, stream)) return CAPTURE_UNSUPPORTED;
    if (captured || mode < 0 || mode > 2) return INVALID_VALUE;
    captured = stream;
    capture_mode = mode;
    capture_thread = pthread_self();
    is_capture_valid = 1;
    return OK;
}
static int cuStreamIsCapturing(void *stream, int *status) {
    *status = stream != captured ? 0 : is_capture_valid ? 1 : 2;
    return is_stream(stream) ? OK : INVALID_HANDLE;
}
static int cuStreamEndCapture(void *stream, void **graph) {
    *graph = NULL;
    if (!captured || stream != captured) return INVALID_VALUE;
    if (capture_mode != RELAXED && !pthread_equal(capture_thread, pthread_self())) return CAPTURE_WRONG_THREAD;
    captured = NULL;
    if (!is_capture_valid) return CAPTURE_INVALIDATED;
    *graph = stream;
    return OK;
}
static int cuMemHostGetDevicePointer(uintptr_t *address, void *p, unsigned flags) {
    *address = (uintptr_t)p;
    return pushed && around(REGISTRATION, (uintptr_t)p, 1) && !flags ? OK : INVALID_VALUE;
}

static int cuMemsetD8Async(uintptr_t address, unsigned char value, size_t num_bytes, void *stream) {
    if (!pushed || !is_stream(stream) || !is_copyable(address, num_bytes)) return INVALID_VALUE;
    if (stream == captured) return is_capture_valid ? OK : CAPTURE_INVALIDATED;
    memset((void *)address, value, num_bytes);
    return OK;
}
static int cuLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
    if (!is_stream(stream) || !function) return INVALID_VALUE;
    function(data);
    return OK;
}
static int cuMemcpyAsync(uintptr_t dst, uintptr_t src, size_t num_bytes, void *stream) {
    if (!pushed || !is_stream(stream)) return INVALID_VALUE;
    if (!is_copyable(dst, num_bytes) || !is_copyable(src, num_bytes)) return INVALID_VALUE;
    if (stream && stream == captured) return is_capture_valid ? OK : CAPTURE_INVALIDATED;
    memcpy((void *)dst, (void *)src, num_bytes);
    return OK;
}
typedef struct { int order; Location src, dst; unsigned flags; } CopyAttributes;
static int copy_batch(uintptr_t *dsts, uintptr_t *srcs, size_t *sizes, size_t count, CopyAttributes *attributes,
                      size_t *indices, size_t num_attributes, void *stream) {
    if ((uintptr_t)stream <= 1 || !count) return INVALID_VALUE;
    if (stream == captured) return is_capture_valid = 0, CAPTURE_UNSUPPORTED; /* a batch cannot be captured */
    if (num_attributes != 1 || indices[0] || attributes->order != 1) return INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        int status = cuMemcpyAsync(dsts[i], srcs[i], sizes[i], stream);
        if (status) return status;
    }
    return OK;
}
static int cuMemcpyBatchAsync_v1(uintptr_t *dsts, uintptr_t *srcs, size_t *sizes, size_t count,
                                 CopyAttributes *attributes, size_t *indices, size_t num_attributes, size_t *failed,
                                 void *stream) {
    *failed = SIZE_MAX;
    return copy_batch(dsts, srcs, sizes, count, attributes, indices, num_attributes, stream);
}

static int cuModuleLoadData(void **module, const void *image) {
    UNLESS_CAPTURING;
    if (!pushed || !image) return INVALID_VALUE;
    *module = add(MODULE, 0, 0);
    return OK;
}
static int cuModuleUnload(void *module) { UNLESS_CAPTURING; return destroy(MODULE, module); }
static int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = module;
    return !object(MODULE, module) ? INVALID_HANDLE : strcmp(name, "store") ? NOT_FOUND : OK;
}
static int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared_bytes, void *stream, void **parameters, void **extra) {
    if (!pushed || !object(MODULE, function) || !is_stream(stream) || extra) return INVALID_VALUE;
    if (!gx || !gy || !gz || !bx || !by || !bz) return INVALID_VALUE;
    uintptr_t address = *(uint64_t *)parameters[0];
    if (!is_copyable(address, 4)) return INVALID_VALUE;
    *(uint32_t *)address = *(uint32_t *)parameters[1];
    return OK;
}

#define ENTRY(name) {#name, (void *)name}
static const struct { const char *name; void *function; } entries[] = {
    ENTRY(cuInit), ENTRY(cuDriverGetVersion), ENTRY(cuDeviceGetCount), ENTRY(cuDeviceGet), ENTRY(cuDeviceGetName), ENTRY(cuDeviceGetPCIBusId),
    ENTRY(cuDeviceGetAttribute), ENTRY(cuDeviceTotalMem), ENTRY(cuGetErrorName), ENTRY(cuGetErrorString),
    ENTRY(cuDevicePrimaryCtxRetain), ENTRY(cuDevicePrimaryCtxRelease), ENTRY(cuCtxPushCurrent),
    ENTRY(cuCtxPopCurrent), ENTRY(cuCtxGetCurrent), ENTRY(cuCtxGetDevice), ENTRY(cuCtxSynchronize),
    ENTRY(cuMemGetAllocationGranularity), ENTRY(cuMemAddressReserve), ENTRY(cuMemAddressFree), ENTRY(cuMemCreate),
    ENTRY(cuMemRelease), ENTRY(cuMemMap), ENTRY(cuMemSetAccess), ENTRY(cuMemUnmap), ENTRY(cuMemExportToShareableHandle), ENTRY(cuMemHostRegister),
    ENTRY(cuMemHostUnregister), ENTRY(cuMemHostGetDevicePointer), ENTRY(cuStreamCreate), ENTRY(cuStreamDestroy), ENTRY(cuStreamSynchronize),
    ENTRY(cuStreamWaitEvent), ENTRY(cuEventCreate), ENTRY(cuEventDestroy), ENTRY(cuEventRecord),
    ENTRY(cuEventQuery), ENTRY(cuEventElapsedTime), ENTRY(cuEventSynchronize), ENTRY(cuMemsetD8Async), ENTRY(cuMemcpyAsync), ENTRY(cuLaunchHostFunc),
    ENTRY(cuModuleLoadData), ENTRY(cuModuleUnload), ENTRY(cuModuleGetFunction), ENTRY(cuLaunchKernel),
    ENTRY(cuThreadExchangeStreamCaptureMode), ENTRY(cuStreamIsCapturing), ENTRY(cuStreamEndCapture), ENTRY(cuStreamQuery),
    {"cuStreamBeginCapture", (void *)cuStreamBeginCapture_v2},
};

int cuGetProcAddress_v2(const char *symbol, void **function, int asked_version, uint64_t flags, int *status) {
    *function = NULL;
    if (!strcmp(symbol, "cuMemcpyBatchAsync") && asked_version <= version() && version() >= 12080)
        *function = asked_version >= 13000 ? (void *)copy_batch : (void *)cuMemcpyBatchAsync_v1;
    else if (!strcmp(symbol, "cuGetProcAddress"))
        *function = (void *)cuGetProcAddress_v2;
    else if (!strcmp(symbol, "cuStreamWaitValue32") && asked_version >= 11070)
        *function = (void *)cuStreamWaitValue32;
    else if (!strcmp(symbol, "cuStreamWriteValue32") && asked_version >= 11070)
        *function = (void *)cuStreamWriteValue32;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (!strcmp(symbol, entries[i].name)) *function = entries[i].function;
    if (status) *status = *function ? 0 : 1;
    return *function ? OK : NOT_FOUND;
}
int cuGetProcAddress(const char *symbol, void **function, int asked_version, uint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, asked_version, flags, NULL);
}
