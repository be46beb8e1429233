/* SPDX-License-Identifier: Apache-2.0 */
#include "array.h"

/* DLPack 1.1 brought the codes from 7 on. Their names are those of ml_dtypes, which NumPy knows once it is imported. */
static Dtype dtypes[] = {
    {"|u1", "uint8", "B", 'u', 1, DL_UINT, 0, NULL, NULL},
    {"<f4", "float32", "f", 'f', 4, DL_FLOAT, 0, NULL, NULL},
    {"<f8", "float64", "d", 'f', 8, DL_FLOAT, 0, NULL, NULL},
    {"<f2", "float16", "e", 'f', 2, DL_FLOAT, 0, NULL, NULL},
    {"|i1", "int8", "b", 'i', 1, DL_INT, 0, NULL, NULL},
    {"<i2", "int16", "h", 'i', 2, DL_INT, 0, NULL, NULL},
    {"<i4", "int32", "i", 'i', 4, DL_INT, 0, NULL, NULL},
    {"<i8", "int64", "q", 'i', 8, DL_INT, 0, NULL, NULL},
    {"<u2", "uint16", "H", 'u', 2, DL_UINT, 0, NULL, NULL},
    {"<u4", "uint32", "I", 'u', 4, DL_UINT, 0, NULL, NULL},
    {"<u8", "uint64", "Q", 'u', 8, DL_UINT, 0, NULL, NULL},
    {"|b1", "bool", "?", 'b', 1, DL_BOOL, 0, NULL, NULL},
    {"<c8", "complex64", "Zf", 'c', 8, DL_COMPLEX, 0, NULL, NULL},
    {"<c16", "complex128", "Zd", 'c', 16, DL_COMPLEX, 0, NULL, NULL},
    {"bfloat16", "bfloat16", NULL, 'V', 2, DL_BFLOAT, 0, NULL, NULL},
    {"float8_e3m4", "float8_e3m4", NULL, 'V', 1, 7, 1, NULL, NULL},
    {"float8_e4m3", "float8_e4m3", NULL, 'V', 1, 8, 1, NULL, NULL},
    {"float8_e4m3b11fnuz", "float8_e4m3b11fnuz", NULL, 'V', 1, 9, 1, NULL, NULL},
    {"float8_e4m3fn", "float8_e4m3fn", NULL, 'V', 1, 10, 1, NULL, NULL},
    {"float8_e4m3fnuz", "float8_e4m3fnuz", NULL, 'V', 1, 11, 1, NULL, NULL},
    {"float8_e5m2", "float8_e5m2", NULL, 'V', 1, 12, 1, NULL, NULL},
    {"float8_e5m2fnuz", "float8_e5m2fnuz", NULL, 'V', 1, 13, 1, NULL, NULL},
    {"float8_e8m0fnu", "float8_e8m0fnu", NULL, 'V', 1, 14, 1, NULL, NULL},
};
enum { kDtypes = sizeof dtypes / sizeof *dtypes };

/* Types that programs use repeatedly, by identity. An entry stays, with its reference, so that no other object gets the
 * address and a look needs no lock. When the places of an address are taken, the type is looked up each time. */
enum { kKnown = 64, kPlaces = 4 };
static struct {
  PyObject *object;
  const Dtype *dtype;
} known[kKnown];
static PyObject *known_guard; /* the text "uint8" */

int dtype_init(void) {
  for (int i = 0; i < kDtypes; ++i) {
    dtypes[i].typestr_object = PyUnicode_InternFromString(dtypes[i].typestr);
    dtypes[i].name_object = PyUnicode_InternFromString(dtypes[i].name);
    if (!dtypes[i].typestr_object || !dtypes[i].name_object) return -1;
  }
  known_guard = dtypes[0].name_object;
  return 0;
}

const Dtype *dtype_bytes(void) { return &dtypes[0]; }

static const Dtype *from_text(PyObject *text) {
  const char *name = PyUnicode_AsUTF8(text);
  if (!name) return NULL;
  for (int i = 0; i < kDtypes; ++i)
    if (strcmp(name, dtypes[i].name) == 0 || strcmp(name, dtypes[i].typestr) == 0) return &dtypes[i];
  /* NumPy's other spellings: f4, =f4, and any mark of byte order for types of one byte. */
  const char *bare = *name && strchr("<>=|", *name) ? name + 1 : name;
  if (*name != '>' || strcmp(bare, "u1") == 0 || strcmp(bare, "i1") == 0 || strcmp(bare, "b1") == 0)
    for (int i = 0; i < kDtypes; ++i)
      if (dtypes[i].kind != 'V' && strcmp(bare, dtypes[i].typestr + 1) == 0) return &dtypes[i];
  PyErr_Format(PyExc_TypeError,
               "dtype %R is none that gmm knows; it takes bool, integers, floats and complex numbers of this machine's "
               "byte order, "
               "bfloat16 and the float8 types",
               text);
  return NULL;
}

static size_t place_of(const PyObject *object, size_t i) { return (((uintptr_t)object >> 4) + i) % kKnown; }

static void remember(PyObject *object, const Dtype *dtype) {
  GUARD_BEGIN(known_guard)
  for (size_t i = 0; i < kPlaces; ++i) {
    const size_t place = place_of(object, i);
    if (known[place].object == object) break; /* another thread was first */
    if (known[place].object) continue;
    Py_INCREF(object);
    known[place].dtype = dtype;
    STORE(known[place].object, object); /* last: whoever sees it sees the dtype too */
    break;
  }
  GUARD_END()
}

const Dtype *dtype_from(PyObject *object) {
  for (size_t i = 0; i < kPlaces; ++i) {
    const size_t place = place_of(object, i);
    if (LOAD(known[place].object) == object) return known[place].dtype;
  }
  const Dtype *found = NULL;
  if (PyUnicode_Check(object)) {
    found = from_text(object);
    if (!found || !PyUnicode_CHECK_INTERNED(object)) return found; /* a temporary text would only displace others */
  } else {
    PyObject *text = helper_call(HELPER_DTYPE_NAME, object);
    if (!text) return NULL;
    if (PyUnicode_Check(text))
      found = from_text(text);
    else
      PyErr_Format(PyExc_TypeError, "%R is no dtype", object);
    Py_DECREF(text);
    if (!found) return NULL;
  }
  remember(object, found);
  return found;
}

const Dtype *dtype_from_dlpack(DLDataType type) {
  if (type.lanes == 1)
    for (int i = 0; i < kDtypes; ++i)
      if (dtypes[i].code == type.code && dtypes[i].itemsize * 8 == type.bits) return &dtypes[i];
  PyErr_Format(PyExc_BufferError, "DLPack's type (code %d, %d bits, %d lanes) is none that gmm knows", (int)type.code,
               (int)type.bits, (int)type.lanes);
  return NULL;
}
