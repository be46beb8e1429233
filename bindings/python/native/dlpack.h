/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file dlpack.h
 * DLPack's structs, as its header lays them out (https://dmlc.github.io/dlpack/latest/c_api.html).
 */
#ifndef GMM_PYTHON_DLPACK_H
#define GMM_PYTHON_DLPACK_H

#include <stdint.h>

typedef struct {
  int32_t device_type;
  int32_t device_id;
} DLDevice;

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13, DL_ONE_API = 14 };

typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_COMPLEX = 5, DL_BOOL = 6 };

typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides; /**< in elements; NULL: C-contiguous */
  uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

enum { DL_FLAG_READ_ONLY = 1, DL_FLAG_IS_COPIED = 2 };

typedef struct DLManagedTensorVersioned {
  struct {
    uint32_t major, minor;
  } version;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;

_Static_assert(sizeof(DLTensor) == 48 && sizeof(DLManagedTensorVersioned) == 80,
               "DLPack 1.0 fixes these sizes on 64-bit machines");

#endif
