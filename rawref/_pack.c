/* Integers of a list, side by side in memory: a loop that mypyc, which counts a reference for each item and looks at each index twice,
 * makes three times as long. Exact ints only, so no item's own code runs, and the list stays as it is meanwhile. */

#include "_rawref.h"

/* Whether an exact int fits; most have one digit, which is read here. */
static inline int
read_int32(PyObject *item, int32_t *value)
{
#if PY_VERSION_HEX >= 0x030C0000
    if (PyUnstable_Long_IsCompact((PyLongObject *)item)) {
        *value = (int32_t)PyUnstable_Long_CompactValue((PyLongObject *)item);
        return 1;
    }
#else
    Py_ssize_t sign = Py_SIZE(item);  /* times the number of digits */
    if (sign >= -1 && sign <= 1) {
        *value = (int32_t)(sign * (Py_ssize_t)((PyLongObject *)item)->ob_digit[0]);
        return 1;
    }
#endif
    int overflow;
    long long wide = PyLong_AsLongLongAndOverflow(item, &overflow);
    *value = (int32_t)wide;
    return !overflow && wide == *value;
}

PyObject *
module_pack_int32(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t num_args)
{
    Py_ssize_t limits[3] = {0, 0, 0};
    if (num_args != 4 || !PyList_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "pack_int32(items, begin, end, least) takes a list and three ints");
        return NULL;
    }
    for (Py_ssize_t position = 0; position < 3; position++) {
        limits[position] = PyLong_AsSsize_t(args[position + 1]);
        if (limits[position] == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    Py_ssize_t begin = limits[0], end = limits[1], least = limits[2];
    if (begin < 0 || begin > end || end > PyList_GET_SIZE(args[0])) {
        PyErr_Format(PyExc_IndexError, "no items %zd to %zd in a list of %zd", begin, end, PyList_GET_SIZE(args[0]));
        return NULL;
    }
    PyObject *packed = PyBytes_FromStringAndSize(NULL, (end - begin) * (Py_ssize_t)sizeof(int32_t));
    if (packed == NULL) {
        return NULL;
    }
    PyObject *const *items = ((PyListObject *)args[0])->ob_item;
    int32_t *values = (int32_t *)PyBytes_AS_STRING(packed);
    for (Py_ssize_t position = begin; position < end; position++, values++) {
        if (!PyLong_CheckExact(items[position]) || !read_int32(items[position], values) || *values < least) {
            Py_DECREF(packed);
            Py_RETURN_NONE;
        }
    }
    return packed;
}
