/* SPDX-License-Identifier: Apache-2.0 */
/* Options: the package gives them as dictionaries, and generate.py writes the tables of their fields. */
#include "native.h"

int text_read(PyObject *object, const char **text) {
  Py_ssize_t length;
  if (!PyUnicode_Check(object)) {
    PyErr_Format(PyExc_TypeError, "expected a str or None, not %.100s", Py_TYPE(object)->tp_name);
    return -1;
  }
  *text = PyUnicode_AsUTF8AndSize(object, &length); /* lives as long as the object, which the caller holds */
  if (!*text) return -1;
  if (strlen(*text) == (size_t)length) return 0;
  PyErr_SetString(PyExc_ValueError, "a name or path cannot hold a null character");
  return -1;
}

static int read_struct(PyObject *given, const StructType *type, char *to, void **list);

/* Numbers of 32 bits, or structs. No struct has two lists. */
static int read_list(PyObject *object, const StructField *field, char *to, void **list) {
  PyObject *items = PySequence_Fast(object, "expected a sequence");
  if (!items) return -1;
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(items);
  const size_t size = field->element ? field->element->size : sizeof(uint32_t);
  int result = 0;
  *list = PyMem_Calloc((size_t)count + 1, size);
  if (!*list) {
    PyErr_NoMemory();
    result = -1;
  }
  for (Py_ssize_t i = 0; result == 0 && i < count; ++i) {
    char *place = (char *)*list + size * (size_t)i;
    PyObject *item = PySequence_Fast_GET_ITEM(items, i);
    if (field->element)
      result = read_struct(item, field->element, place, NULL);
    else
      result = number_32(item, (uint32_t *)(void *)place);
  }
  memcpy(to + field->at, list, sizeof *list);
  *(uint32_t *)(void *)(to + field->count_at) = (uint32_t)count;
  Py_DECREF(items);
  return result;
}

static int read_field(PyObject *object, const StructField *field, char *to, void **list) {
  void *place = to + field->at;
  switch (field->kind) {
    case 'I':
      return number_32(object, place);
    case 'i':
      return number_i32(object, place);
    case 'Q':
      return number_64(object, place);
    case 'P':
      return memory_address(object, place);
    case 's':
      return text_read(object, place);
    case 'L':
      return read_list(object, field, to, list);
    default: /* 'C': a function of callbacks.c, and the object that it calls */
      memcpy(place, &field->callback, sizeof field->callback);
      memcpy((char *)place + sizeof field->callback, &object, sizeof object);
      return 0;
  }
}

static int read_struct(PyObject *given, const StructType *type, char *to, void **list) {
  PyObject *name, *value;
  Py_ssize_t at = 0;
  memset(to, 0, type->size);
  if (type->has_size) *(uint32_t *)(void *)to = type->size;
  if (!PyDict_Check(given)) {
    PyErr_Format(PyExc_TypeError, "expected a dict of options, not %.100s", Py_TYPE(given)->tp_name);
    return -1;
  }
  while (PyDict_Next(given, &at, &name, &value)) {
    const StructField *field = type->fields;
    while (field->name && PyUnicode_CompareWithASCIIString(name, field->name) != 0) ++field;
    if (!field->name) {
      PyErr_Format(PyExc_TypeError, "these options have no %R", name);
      return -1;
    }
    if (value != Py_None && read_field(value, field, to, list) < 0) return -1;
  }
  return 0;
}

int options_read(PyObject *given, const StructType *type, void *to, void **list) {
  return given == Py_None ? 0 : read_struct(given, type, to, list);
}
