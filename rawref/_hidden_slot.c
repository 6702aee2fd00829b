/* The attribute `__rawref__` of a class whose objects keep a guard in it.
 *
 * A HiddenSlot takes the place of the class's own descriptor, so that whoever reads the attribute gets the ref, never
 * the guard: a second holder of the guard would let it survive its target.
 */

#include "_rawref.h"

/* What `__rawref__` means for a class: 1, *found (a new reference) and *owner (borrowed), or 0 if the MRO lacks it. */
int
find_attribute(PyTypeObject *type, PyObject *name, PyObject **found, PyTypeObject **owner)
{
    PyObject *mro = type->tp_mro;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); i++) {
        PyTypeObject *base = (PyTypeObject *)PyTuple_GET_ITEM(mro, i);
#if PY_VERSION_HEX >= 0x030C0000
        PyObject *dict = PyType_GetDict(base);
        PyObject *value = PyDict_GetItemWithError(dict, name);
        Py_DECREF(dict);  /* the class keeps it */
#else
        PyObject *value = PyDict_GetItemWithError(base->tp_dict, name);
#endif
        if (value != NULL) {
            *found = Py_NewRef(value);
            *owner = base;
            return 1;
        }
        if (PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

/* The guard that `target` holds, as a new reference, or NULL; NULL with an exception if something else sits there. */
GuardObject *
load_guard(ModuleState *state, PyObject *inner, PyObject *target)
{
    PyObject *value = Py_TYPE(inner)->tp_descr_get(inner, target, (PyObject *)Py_TYPE(target));
    if (value == NULL) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
            PyErr_Clear();  /* declared, never assigned */
        }
        return NULL;
    }
    if (Py_IS_TYPE(value, state->guard_type)) {
        return (GuardObject *)value;
    }
    if (value != Py_None && !Py_IS_TYPE(value, state->ref_type)) {
        PyErr_Format(PyExc_TypeError, "the attribute " ATTRIBUTE " of a %s belongs to rawref, but holds a %s",
                     Py_TYPE(target)->tp_name, Py_TYPE(value)->tp_name);
    }
    Py_DECREF(value);
    return NULL;
}

static PyObject *
hidden_slot_get(HiddenSlotObject *self, PyObject *target, PyObject *Py_UNUSED(type))
{
    if (target == NULL || target == Py_None) {
        return Py_NewRef(self);
    }
    ModuleState *state = state_of(Py_TYPE(self));
    if (state == NULL) {
        return NULL;
    }
    GuardObject *guard = load_guard(state, self->inner, target);
    if (guard == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(self->null_ref);
    }
    PyObject *ref = Py_NewRef(guard->ref);
    Py_DECREF(guard);
    return ref;
}

static int
hidden_slot_set(HiddenSlotObject *self, PyObject *target, PyObject *value)
{
    ModuleState *state = state_of(Py_TYPE(self));
    if (state == NULL) {
        return -1;
    }
    if (value != NULL && value != Py_None) {
        if (!Py_IS_TYPE(value, state->ref_type)) {
            PyErr_Format(PyExc_TypeError,
                         "the attribute " ATTRIBUTE " belongs to rawref: assign rawref.NULL or None, not a %s",
                         Py_TYPE(value)->tp_name);
            return -1;
        }
        if (((RefObject *)value)->target == target) {
            return 0;  /* its own ref, which the guard holds already */
        }
    }
    /* A guard that sat here dies now, and reports if its ref was still valid. A ref to something else (copy.copy does
     * that) means nothing here. */
    return Py_TYPE(self->inner)->tp_descr_set(self->inner, target, Py_None);
}

static int
hidden_slot_traverse(HiddenSlotObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->inner);
    Py_VISIT(self->null_ref);
    return 0;
}

static void
hidden_slot_dealloc(HiddenSlotObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_DECREF(self->inner);
    Py_DECREF(self->null_ref);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyType_Slot hidden_slot_slots[] = {
    {Py_tp_dealloc, hidden_slot_dealloc},
    {Py_tp_traverse, hidden_slot_traverse},
    {Py_tp_descr_get, hidden_slot_get},
    {Py_tp_descr_set, hidden_slot_set},
    {Py_tp_doc, "Stands in front of a class's own " ATTRIBUTE " and hands out the ref instead of the guard."},
    {0, NULL},
};

PyType_Spec hidden_slot_spec = {
    .name = "rawref._HiddenSlot",
    .basicsize = sizeof(HiddenSlotObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = hidden_slot_slots,
};

/* Put a HiddenSlot in the place of `inner` in `owner`, once per class. */
HiddenSlotObject *
hide_slot(ModuleState *state, PyTypeObject *owner, PyObject *inner)
{
    HiddenSlotObject *slot = PyObject_GC_New(HiddenSlotObject, state->hidden_slot_type);
    if (slot == NULL) {
        return NULL;
    }
    slot->inner = Py_NewRef(inner);
    slot->null_ref = (RefObject *)Py_NewRef(state->null_ref);
    PyObject_GC_Track(slot);
    /* type's own setattr, so that no metaclass gets a say; it refuses classes that cannot change. */
    int failed = PyType_Type.tp_setattro((PyObject *)owner, state->attribute_name, (PyObject *)slot);
    if (failed) {
        Py_CLEAR(slot);
    }
    return slot;
}
