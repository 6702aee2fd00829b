/* The module: how a target gets its one ref, and `invalidate`. The contract is at the head of _rawref.h. */

#include "_rawref.h"

/* -- making refs ------------------------------------------------------------------------------------------------ */

ModuleState *
state_of(PyTypeObject *type)
{
    ModuleState *state = PyType_GetModuleState(type);
    if (state != NULL && state->null_ref == NULL) {
        PyErr_SetString(PyExc_ReferenceError, "the module rawref is gone");
        return NULL;
    }
    return state;
}

static PyObject *
ref_of_guarded(ModuleState *state, HiddenSlotObject *slot, PyObject *target)
{
    /* Allocate first, look afterwards: an allocation can run the garbage collector, and that any code. */
    GuardObject *spare_guard = NULL;
    RefObject *ref = new_dead_ref(state);
    if (ref == NULL) {
        return NULL;
    }
    GuardObject *guard = load_guard(state, slot->inner, target);
    if (guard == NULL && !PyErr_Occurred()) {
        spare_guard = new_guard(state, target);
        guard = spare_guard != NULL ? load_guard(state, slot->inner, target) : NULL;
    }
    if (PyErr_Occurred()) {
        goto fail;
    }
    if (guard == NULL) {
        guard = (GuardObject *)Py_NewRef(spare_guard);
        if (Py_TYPE(slot->inner)->tp_descr_set(slot->inner, target, (PyObject *)guard) < 0) {
            goto fail;
        }
    }
    Py_CLEAR(spare_guard);
    if (guard->target != target || Py_REFCNT(guard) != 2) {
        cut_and_raise_shared_guard(guard);
        goto fail;
    }
    if (guard->ref->target == NULL) {
        ref->target = target;
        ref->guard = guard;
        Py_SETREF(guard->ref, (RefObject *)Py_NewRef(ref));
    }
    Py_SETREF(ref, (RefObject *)Py_NewRef(guard->ref));
    Py_DECREF(guard);
    return (PyObject *)ref;

fail:
    Py_XDECREF(spare_guard);
    Py_XDECREF(guard);
    Py_DECREF(ref);
    return NULL;
}

static PyObject *
raise_unfit_target(PyObject *target)
{
    PyErr_Format(PyExc_TypeError,
                 "a %s cannot be the target of a rawref.ref: declare the attribute " ATTRIBUTE " in its class "
                 "(in __slots__, and with an annotation if mypyc compiles it), or let it have __dict__ and __weakref__",
                 Py_TYPE(target)->tp_name);
    return NULL;
}

static PyObject *
ref_of_plain(ModuleState *state, PyObject *target)
{
    PyTypeObject *type = Py_TYPE(target);
    /* Only classes that Python itself deallocates: a mypyc class over a base with __weakref__ never clears weakrefs. */
    if (!PyType_SUPPORTS_WEAKREFS(type) || type->tp_dealloc != state->python_class_dealloc) {
        return raise_unfit_target(target);
    }
    PyObject *known = PyObject_GenericGetAttr(target, state->attribute_name);
    if (known == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return NULL;
        }
        PyErr_Clear();
    }
    else {
        if (Py_IS_TYPE(known, state->ref_type) && ((RefObject *)known)->target == target) {
            return known;
        }
        Py_DECREF(known);
    }
    RefObject *ref = new_dead_ref(state);
    if (ref == NULL) {
        return NULL;
    }
    ref->weak = PyWeakref_NewRef(target, NULL);
    if (ref->weak == NULL) {
        Py_DECREF(ref);
        return NULL;
    }
    ref->target = target;
    if (PyObject_GenericSetAttr(target, state->attribute_name, (PyObject *)ref) < 0) {
        Py_DECREF(ref);
        if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
            PyErr_Clear();
            return raise_unfit_target(target);
        }
        return NULL;
    }
    return (PyObject *)ref;
}

PyObject *
ref_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (PyTuple_GET_SIZE(args) != 1 || (kwargs != NULL && PyDict_GET_SIZE(kwargs) != 0)) {
        PyErr_SetString(PyExc_TypeError, "ref(target) takes one positional argument");
        return NULL;
    }
    PyObject *target = PyTuple_GET_ITEM(args, 0);
    ModuleState *state = state_of(type);
    if (state == NULL) {
        return NULL;
    }
    PyObject *attribute = NULL;
    PyTypeObject *owner = NULL;
    int found = find_attribute(Py_TYPE(target), state->attribute_name, &attribute, &owner);
    if (found < 0) {
        return NULL;
    }
    if (found && (Py_IS_TYPE(attribute, &PyMemberDescr_Type) || Py_IS_TYPE(attribute, &PyGetSetDescr_Type))) {
        Py_SETREF(attribute, (PyObject *)hide_slot(state, owner, attribute));
        if (attribute == NULL) {
            return NULL;
        }
    }
    PyObject *ref;
    if (found && Py_IS_TYPE(attribute, state->hidden_slot_type)) {
        ref = ref_of_guarded(state, (HiddenSlotObject *)attribute, target);
    }
    else {
        ref = ref_of_plain(state, target);
    }
    Py_XDECREF(attribute);
    return ref;
}

/* -- the module ------------------------------------------------------------------------------------------------- */

static PyObject *
module_write_unraisable(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t num_args)
{
    if (num_args != 2 || !PyExceptionInstance_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "write_unraisable(error, place) takes an exception and the object that it is about");
        return NULL;
    }
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(args[0])), Py_NewRef(args[0]), PyException_GetTraceback(args[0]));
    PyErr_WriteUnraisable(args[1]);
    Py_RETURN_NONE;
}

static PyObject *
module_invalidate(PyObject *module, PyObject *target)
{
    if (PyErr_Occurred()) {
        /* The collector runs finalizers one after the other, and mypyc's leave their exceptions set. Python code under an
         * exception that is not its own fails at its first call, so it is reported before the target's `__del__` goes on. */
        PyErr_WriteUnraisable((PyObject *)Py_TYPE(target));
    }
    ModuleState *state = PyModule_GetState(module);
    PyObject *attribute = NULL;
    PyTypeObject *owner = NULL;
    int found = find_attribute(Py_TYPE(target), state->attribute_name, &attribute, &owner);
    if (found < 0) {
        return NULL;
    }
    if (found && Py_IS_TYPE(attribute, state->hidden_slot_type)) {
        GuardObject *guard = load_guard(state, ((HiddenSlotObject *)attribute)->inner, target);
        Py_DECREF(attribute);
        if (guard == NULL && PyErr_Occurred()) {
            return NULL;
        }
        if (guard != NULL) {
            cut(guard->ref);
            Py_DECREF(guard);
        }
        Py_RETURN_NONE;
    }
    Py_XDECREF(attribute);
    PyObject *value = PyObject_GenericGetAttr(target, state->attribute_name);
    if (value == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return NULL;
        }
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    if (Py_IS_TYPE(value, state->ref_type) && ((RefObject *)value)->target == target) {
        cut((RefObject *)value);
    }
    Py_DECREF(value);
    Py_RETURN_NONE;
}

static PyObject *
module_untrack(PyObject *Py_UNUSED(module), PyObject *objects)
{
    if (!PyList_CheckExact(objects)) {
        PyErr_Format(PyExc_TypeError, "untrack takes a list of objects, not a %s", Py_TYPE(objects)->tp_name);
        return NULL;
    }
    for (Py_ssize_t position = 0; position < PyList_GET_SIZE(objects); position++) {
        PyObject *object = PyList_GET_ITEM(objects, position);
        if (PyObject_IS_GC(object)) {
            PyObject_GC_UnTrack(object);  /* one that is not tracked stays so */
        }
    }
    Py_RETURN_NONE;
}

#define COLLECTOR_BYTES (2 * sizeof(void *))  /* in front of each object that can be tracked; zeros while it is not */

/* As PyType_GenericAlloc, but the collector, which runs after so many new objects, neither sees this one nor counts it. */
static PyObject *
allocate_untracked(PyTypeObject *type, Py_ssize_t Py_UNUSED(num_items))
{
    char *memory = PyObject_Calloc(1, COLLECTOR_BYTES + type->tp_basicsize);
    if (memory == NULL) {
        return PyErr_NoMemory();
    }
    return PyObject_Init((PyObject *)(memory + COLLECTOR_BYTES), type);
}

/* Whether this interpreter puts COLLECTOR_BYTES in front of an object: what sys.getsizeof adds to __sizeof__. */
static int
has_known_header(void)
{
    PyObject *probe = PyList_New(0);
    PyObject *getsizeof = PySys_GetObject("getsizeof");  /* borrowed */
    PyObject *whole = probe != NULL && getsizeof != NULL ? PyObject_CallOneArg(getsizeof, probe) : NULL;
    PyObject *alone = whole != NULL ? PyObject_CallMethod(probe, "__sizeof__", NULL) : NULL;
    int is_known = alone == NULL ? -1 : PyLong_AsSsize_t(whole) - PyLong_AsSsize_t(alone) == COLLECTOR_BYTES;
    Py_XDECREF(alone);
    Py_XDECREF(whole);
    Py_XDECREF(probe);
    return is_known;
}

static PyObject *
module_untrack_class(PyObject *Py_UNUSED(module), PyObject *argument)
{
    PyTypeObject *type = (PyTypeObject *)argument;
    if (!PyType_Check(argument) || !PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) || PyType_HasFeature(type, Py_TPFLAGS_IMMUTABLETYPE) ||
        type->tp_alloc != PyType_GenericAlloc || type->tp_free != PyObject_GC_Del || type->tp_itemsize != 0 || type->tp_dictoffset != 0 || type->tp_weaklistoffset != 0) {
        PyErr_Format(PyExc_TypeError, "untrack_class takes a class with __slots__ alone, and each class once, not %R", argument);
        return NULL;
    }
    int is_known = has_known_header();
    if (is_known < 0) {
        return NULL;
    }
    if (is_known) {
        type->tp_alloc = allocate_untracked;
    }
    return PyBool_FromLong(is_known);
}

static PyMethodDef module_methods[] = {
    {"invalidate", module_invalidate, METH_O,
     "Cut the ref of target, if it has one. For its class to call where it lets go: in close() and in __del__."},
    {"pack_int32", (PyCFunction)(void (*)(void))module_pack_int32, METH_FASTCALL,
     "Items of a list as native int32, or None if one is no int, or out of range."},
    {"seal", module_seal, METH_O,
     "Close what mypyc leaves open in a class that it made: deleting properties, __init__ a second time. For each class once."},
    {"untrack", module_untrack, METH_O,
     "Hide each object of a list from the garbage collector, which frees no cycle through it from then on."},
    {"untrack_class", module_untrack_class, METH_O,
     "Hide all objects of a class from the garbage collector as they are made. False where this interpreter does not allow it."},
    {"write_unraisable", (PyCFunction)(void (*)(void))module_write_unraisable, METH_FASTCALL,
     "Hand an exception that nobody can catch to sys.unraisablehook, with the object that it is about."},
    {NULL},
};

static int
module_exec(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    state->attribute_name = PyUnicode_InternFromString(ATTRIBUTE);
    if (state->attribute_name == NULL) {
        return -1;
    }
    state->ref_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &ref_spec, NULL);
    state->guard_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &guard_spec, NULL);
    state->hidden_slot_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &hidden_slot_spec, NULL);
    if (state->ref_type == NULL || state->guard_type == NULL || state->hidden_slot_type == NULL) {
        return -1;
    }
    state->null_ref = new_dead_ref(state);
    if (state->null_ref == NULL) {
        return -1;
    }
    PyObject *plain_class = PyObject_CallFunction((PyObject *)&PyType_Type, "s(){}", "plain_class");
    if (plain_class == NULL) {
        return -1;
    }
    state->python_class_dealloc = ((PyTypeObject *)plain_class)->tp_dealloc;
    Py_DECREF(plain_class);
    if (PyModule_AddType(module, state->ref_type) < 0) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "NULL", (PyObject *)state->null_ref);
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    ModuleState *state = PyModule_GetState(module);
    Py_VISIT(state->ref_type);
    Py_VISIT(state->guard_type);
    Py_VISIT(state->hidden_slot_type);
    Py_VISIT(state->null_ref);
    return 0;
}

static int
module_clear(PyObject *module)
{
    ModuleState *state = PyModule_GetState(module);
    Py_CLEAR(state->ref_type);
    Py_CLEAR(state->guard_type);
    Py_CLEAR(state->hidden_slot_type);
    Py_CLEAR(state->null_ref);
    Py_CLEAR(state->attribute_name);
    return 0;
}

static void
module_free(void *module)
{
    module_clear((PyObject *)module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "rawref._rawref",
    .m_doc = "References that do not own their target; see the package's docstring.",
    .m_size = sizeof(ModuleState),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC
PyInit__rawref(void)
{
    return PyModuleDef_Init(&module_def);
}
