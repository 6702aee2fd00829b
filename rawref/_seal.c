/* What mypyc leaves open in the classes that it makes: `seal` closes it.
 *
 *   del object.property     a property's setter is called with NULL, and reads it. A descriptor of ours takes the place of
 *                           the property's own; it raises AttributeError for a deletion, and hands on all else.
 *   object.__init__(...)    a second time does nothing and says nothing. A method of ours takes the place of `__init__`
 *                           and raises TypeError; the type's slot, which makes objects, stays as it is. It has the signature of
 *                           the class, which inspect.signature takes from it.
 *   __internal_mypyc_setup  takes its argument for a class, unseen. It leaves the class; mypyc finds it elsewhere.
 *
 * What is replaced lives as long as the class, and classes that mypyc makes are never freed: so nothing here is.
 * The descriptors are C and cost a call from Python one more jump; compiled code does not use them.
 */

#include "_rawref.h"

typedef struct {
    PyGetSetDef definition;
    setter inner;
} SealedProperty;

static int
set_sealed(PyObject *object, PyObject *value, void *closure)
{
    SealedProperty *property = closure;
    if (value == NULL) {
        PyErr_Format(PyExc_AttributeError, "attribute '%s' of a %s cannot be deleted", property->definition.name,
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    return property->inner(object, value, NULL);
}

static int
seal_property(PyTypeObject *type, const PyGetSetDef *inner)
{
    if (inner->closure != NULL) {
        PyErr_Format(PyExc_TypeError, "mypyc did not make the property '%s' of %s", inner->name, type->tp_name);
        return -1;
    }
    SealedProperty *property = PyMem_Malloc(sizeof(SealedProperty));
    if (property == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    property->definition = *inner;
    property->definition.set = set_sealed;
    property->definition.closure = property;  /* mypyc's getters do not look at theirs */
    property->inner = inner->set;
    PyObject *descriptor = PyDescr_NewGetSet(type, &property->definition);
    PyObject *name = descriptor != NULL ? PyUnicode_FromString(inner->name) : NULL;
    /* type's own setattr: it also voids what the interpreter has cached. */
    int failed = name == NULL || PyType_Type.tp_setattro((PyObject *)type, name, descriptor) < 0;
    Py_XDECREF(name);
    if (failed && descriptor == NULL) {
        PyMem_Free(property);
    }
    Py_XDECREF(descriptor);
    return failed ? -1 : 0;
}

static destructor dealloc_of_python_classes;  /* one function of the interpreter, whichever module looks */

static PyObject *
refuse_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyTypeObject *type = Py_TYPE(self);
    if (type->tp_dealloc == dealloc_of_python_classes) {
        /* A subclass in Python calls super().__init__(), as it must. */
        while (type->tp_dealloc == dealloc_of_python_classes) {
            type = type->tp_base;
        }
        return type->tp_init(self, args, kwargs) < 0 ? NULL : Py_NewRef(Py_None);
    }
    PyErr_Format(PyExc_TypeError, "a %s is made once, and this one is: __init__ cannot be called again; make another one",
                 type->tp_name);
    return NULL;
}

#define INIT_DOC "Runs once, when the object is made."
#define SIGNATURE_END ")\n--\n\n"

/* With the arguments that the class's own docstring names, where inspect.signature and help look for them. */
static PyMethodDef *
make_init_definition(PyTypeObject *type)
{
    const char *begin = type->tp_doc != NULL ? type->tp_doc + strcspn(type->tp_doc, "( \n") : "";
    const char *end = *begin == '(' ? strstr(begin, SIGNATURE_END) : NULL;
    size_t length = end != NULL ? (size_t)(end - begin - 1) : 0;
    /* As the method, it lives as long as the process may. */
    PyMethodDef *made = PyMem_Calloc(1, sizeof(PyMethodDef) + sizeof("__init__($self, " SIGNATURE_END INIT_DOC) + length);
    if (made == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    char *doc = (char *)(made + 1);
    if (end == NULL) {
        strcpy(doc, INIT_DOC);
    } else {
        strcpy(doc, length > 0 ? "__init__($self, " : "__init__($self");
        strncat(doc, begin + 1, length);
        strcat(doc, SIGNATURE_END INIT_DOC);
    }
    made->ml_name = "__init__";
    made->ml_meth = (PyCFunction)(void (*)(void))refuse_init;
    made->ml_flags = METH_VARARGS | METH_KEYWORDS;
    made->ml_doc = doc;
    return made;
}

static int
seal_init(PyTypeObject *type)
{
    initproc inner = type->tp_init;
    PyMethodDef *definition = make_init_definition(type);
    if (definition == NULL) {
        return -1;
    }
    PyObject *method = PyDescr_NewMethod(type, definition);
    PyObject *name = method != NULL ? PyUnicode_InternFromString("__init__") : NULL;
    int failed = name == NULL || PyType_Type.tp_setattro((PyObject *)type, name, method) < 0;
    type->tp_init = inner;  /* setattr has let it point to the method */
    Py_XDECREF(name);
    if (method == NULL) {
        PyMem_Free(definition);
    }
    Py_XDECREF(method);
    return failed ? -1 : 0;
}

static int
has_own(PyTypeObject *type, const char *name)
{
    PyObject *key = PyUnicode_InternFromString(name);
    if (key == NULL) {
        return -1;
    }
    PyObject *found = NULL;
    PyTypeObject *owner = NULL;
    int is_found = find_attribute(type, key, &found, &owner);
    Py_DECREF(key);
    Py_XDECREF(found);
    return is_found < 0 ? -1 : is_found && owner == type;
}

PyObject *
module_seal(PyObject *module, PyObject *argument)
{
    ModuleState *state = PyModule_GetState(module);
    if (!PyType_Check(argument)) {
        PyErr_Format(PyExc_TypeError, "seal takes a class, not a %s", Py_TYPE(argument)->tp_name);
        return NULL;
    }
    PyTypeObject *type = (PyTypeObject *)argument;
    int is_compiled = has_own(type, "__internal_mypyc_setup");
    if (is_compiled < 0) {
        return NULL;
    }
    if (!is_compiled) {
        Py_RETURN_NONE;  /* made by Python, which closes all this itself; or sealed before */
    }
    dealloc_of_python_classes = state->python_class_dealloc;
    for (const PyGetSetDef *inner = type->tp_getset; inner != NULL && inner->name != NULL; inner++) {
        if (inner->set != NULL && strcmp(inner->name, ATTRIBUTE) != 0 && seal_property(type, inner) < 0) {
            return NULL;
        }
    }
    int has_init = has_own(type, "__init__");
    if (has_init < 0 || (has_init && seal_init(type) < 0)) {
        return NULL;
    }
    if (PyObject_DelAttrString((PyObject *)type, "__internal_mypyc_setup") < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}
