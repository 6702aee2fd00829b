/* Refs and guards: following a ref, what cuts it, and the report of a target that forgot to.
 *
 * The contract is at the head of _rawref.h. This file knows nothing of how a class keeps its guard (_hidden_slot.c),
 * nor when a target gets its ref (_rawref.c).
 */

#include "_rawref.h"

#include <stddef.h>
#include <structmember.h>

/* -- refs ------------------------------------------------------------------------------------------------------- */

void
cut(RefObject *ref)
{
    ref->target = NULL;
    ref->guard = NULL;
    Py_CLEAR(ref->weak);
}

/* For good: once the other holder has gone, nobody could tell which of the two was left. */
void
cut_and_raise_shared_guard(GuardObject *guard)
{
    cut(guard->ref);
    PyErr_Format(PyExc_ReferenceError,
                 "the guard of a %U has a holder besides its target, so that nobody can say whether the target is "
                 "still there, and its ref is dead from now on; let only the target's own attribute " ATTRIBUTE " hold it",
                 guard->target_name);
}

/* The target as a new reference; None when dead; NULL with an exception when that cannot be known. */
static PyObject *
follow(RefObject *self)
{
    PyObject *target = self->target;
    if (target == NULL) {
        Py_RETURN_NONE;
    }
    if (self->guard != NULL) {
        if (Py_REFCNT(self->guard) != 1) {
            cut_and_raise_shared_guard(self->guard);
            return NULL;
        }
        if (Py_REFCNT(target) == 0) {
            Py_RETURN_NONE;  /* in the middle of its deallocation */
        }
        return Py_NewRef(target);
    }
#if PY_VERSION_HEX >= 0x030D0000
    if (PyWeakref_GetRef(self->weak, &target) < 0) {
        return NULL;
    }
    return target != NULL ? target : Py_NewRef(Py_None);
#else
    return Py_XNewRef(PyWeakref_GetObject(self->weak));
#endif
}

static PyObject *
ref_vectorcall(PyObject *callable, PyObject *const *Py_UNUSED(args), size_t nargsf, PyObject *kwnames)
{
    if (PyVectorcall_NARGS(nargsf) != 0 || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) != 0)) {
        PyErr_SetString(PyExc_TypeError, "a ref is called without arguments");
        return NULL;
    }
    return follow((RefObject *)callable);
}

RefObject *
new_dead_ref(ModuleState *state)
{
    RefObject *self = PyObject_GC_New(RefObject, state->ref_type);
    if (self == NULL) {
        return NULL;
    }
    self->target = NULL;
    self->guard = NULL;
    self->weak = NULL;
    self->vectorcall = ref_vectorcall;
    PyObject_GC_Track(self);
    return self;
}

static int
ref_traverse(RefObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->weak);
    return 0;
}

/* No tp_clear: a ref owns nothing that could lead back to it, except its type, which clears itself. */

static void
ref_dealloc(RefObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    assert(self->guard == NULL);  /* a guard owns its ref, and cuts it first */
    Py_CLEAR(self->weak);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyObject *
ref_invalidate(RefObject *self, PyObject *Py_UNUSED(ignored))
{
    cut(self);
    Py_RETURN_NONE;
}

static PyObject *
ref_get_is_valid(RefObject *self, void *Py_UNUSED(closure))
{
    PyObject *target = follow(self);
    if (target == NULL) {
        return NULL;
    }
    PyObject *is_valid = target != Py_None ? Py_True : Py_False;
    Py_DECREF(target);
    return Py_NewRef(is_valid);
}

static PyObject *
ref_repr(RefObject *self)
{
    PyObject *target = follow(self);
    if (target == NULL) {
        PyErr_Clear();
        return PyUnicode_FromFormat("<rawref.ref at %p, guard held twice>", self);
    }
    PyObject *text;
    if (target == Py_None) {
        text = PyUnicode_FromFormat("<rawref.ref at %p, dead>", self);
    }
    else {
        text = PyUnicode_FromFormat("<rawref.ref at %p to a %s at %p>", self, Py_TYPE(target)->tp_name, target);
    }
    Py_DECREF(target);
    return text;
}

static PyMethodDef ref_methods[] = {
    {"invalidate", (PyCFunction)ref_invalidate, METH_NOARGS, "From now on the ref is dead. Twice is fine."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, NULL},
    {NULL},
};

static PyGetSetDef ref_getset[] = {
    {"is_valid", (getter)ref_get_is_valid, NULL, "Whether a call would return the target.", NULL},
    {NULL},
};

static PyMemberDef ref_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(RefObject, vectorcall), READONLY, NULL},
    {NULL},
};

static PyType_Slot ref_slots[] = {
    {Py_tp_new, ref_new},
    {Py_tp_dealloc, ref_dealloc},
    {Py_tp_traverse, ref_traverse},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_repr, ref_repr},
    {Py_tp_methods, ref_methods},
    {Py_tp_getset, ref_getset},
    {Py_tp_members, ref_members},
    {Py_tp_doc, "ref(target): the reference to target that does not own it. Call it: the target, or None once dead."},
    {0, NULL},
};

PyType_Spec ref_spec = {
    .name = "rawref.ref",
    .basicsize = sizeof(RefObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = ref_slots,
};

/* -- guards ----------------------------------------------------------------------------------------------------- */

/* A guard is left out of garbage collection: what it owns owns no containers, and gc.get_objects() cannot hand it out.
 */

GuardObject *
new_guard(ModuleState *state, PyObject *target)
{
    GuardObject *self = PyObject_New(GuardObject, state->guard_type);
    if (self == NULL) {
        return NULL;
    }
    self->target = target;
    self->ref = (RefObject *)Py_NewRef(state->null_ref);
    self->target_name = PyType_GetQualName(Py_TYPE(target));
    if (self->target_name == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}

static int
is_interpreter_ending(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

static void
report_forgotten_invalidate(PyObject *target_name, RefObject *ref)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *pending = PyErr_GetRaisedException();
#else
    PyObject *pending_type, *pending_value, *pending_traceback;
    PyErr_Fetch(&pending_type, &pending_value, &pending_traceback);
#endif
    PyErr_Format(PyExc_ReferenceError,
                 "a %U that somebody refers to died without rawref.invalidate(); its ref is dead from now on. "
                 "Call rawref.invalidate(self) where the class lets go: in close() and in __del__",
                 target_name);
    PyErr_WriteUnraisable((PyObject *)ref);
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(pending);
#else
    PyErr_Restore(pending_type, pending_value, pending_traceback);
#endif
}

static void
guard_dealloc(GuardObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    RefObject *ref = self->ref;
    PyObject *target_name = self->target_name;
    int was_forgotten = ref->target != NULL;
    cut(ref);
    type->tp_free(self);
    Py_DECREF(type);
    /* Last, because a hook may run any code; not while the interpreter ends: a correct __del__ may be past working. */
    if (was_forgotten && !is_interpreter_ending()) {
        report_forgotten_invalidate(target_name, ref);
    }
    Py_DECREF(ref);
    Py_XDECREF(target_name);
}

static PyObject *
guard_invalidate(GuardObject *self, PyObject *Py_UNUSED(ignored))
{
    cut(self->ref);
    Py_RETURN_NONE;
}

static PyMethodDef guard_methods[] = {
    {"invalidate", (PyCFunction)guard_invalidate, METH_NOARGS, "Cut the ref of this guard's target."},
    {NULL},
};

static PyType_Slot guard_slots[] = {
    {Py_tp_dealloc, guard_dealloc},
    {Py_tp_methods, guard_methods},
    {Py_tp_doc, "What a target keeps in its " ATTRIBUTE " attribute; dies with it, and cuts its ref."},
    {0, NULL},
};

PyType_Spec guard_spec = {
    .name = "rawref._Guard",
    .basicsize = sizeof(GuardObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = guard_slots,
};
