/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_DLPACK_H
#define FWA_DLPACK_H

/* DLPack <-> fwa_tensor. Views only: nothing is copied and nobody's ownership changes. Needs
 * <dlpack/dlpack.h> (Debian: libdlpack-dev, Fedora: dlpack-devel). */

#include <dlpack/dlpack.h>
#include <fwa/fwa.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The DLPack type of an fwa_dtype; code 255 for FWA_DTYPE_NONE and unknown numbers. */
static inline DLDataType fwa_dtype_to_dlpack(int32_t dtype)
{
    DLDataType type = {255, 0, 1};
    switch (dtype) {
    case FWA_DTYPE_F32: type.code = kDLFloat, type.bits = 32; break;
    case FWA_DTYPE_BF16: type.code = kDLBfloat, type.bits = 16; break;
    case FWA_DTYPE_F16: type.code = kDLFloat, type.bits = 16; break;
    case FWA_DTYPE_F64: type.code = kDLFloat, type.bits = 64; break;
    case FWA_DTYPE_I32: type.code = kDLInt, type.bits = 32; break;
    case FWA_DTYPE_I64: type.code = kDLInt, type.bits = 64; break;
    default: break;
    }
    return type;
}

/* The fwa_dtype of a DLPack type; FWA_DTYPE_NONE where there is none. */
static inline int32_t fwa_dtype_from_dlpack(DLDataType type)
{
    int32_t dtype;
    for (dtype = FWA_DTYPE_F32; dtype <= FWA_DTYPE_I64; dtype++) {
        DLDataType mine = fwa_dtype_to_dlpack(dtype);
        if (mine.code == type.code && mine.bits == type.bits && mine.lanes == type.lanes)
            return dtype;
    }
    return FWA_DTYPE_NONE;
}

/* Views *source as *tensor. Returns FWA_ERROR_NULL, FWA_ERROR_SHAPE (rank over FWA_MAX_RANK) or
 * FWA_ERROR_DTYPE without touching *tensor. Says nothing about the device: source->device does. */
static inline fwa_status fwa_tensor_from_dlpack(const DLTensor *source, fwa_tensor *tensor)
{
    fwa_tensor view;
    uint64_t dense = 1;
    int32_t axis;
    if (!source || !tensor)
        return FWA_ERROR_NULL;
    if (source->ndim < 0 || source->ndim > FWA_MAX_RANK)
        return FWA_ERROR_SHAPE;
    memset(&view, 0, sizeof view);
    view.dtype = fwa_dtype_from_dlpack(source->dtype);
    if (view.dtype == FWA_DTYPE_NONE)
        return FWA_ERROR_DTYPE;
    view.data = source->data ? (void *)((char *)source->data + source->byte_offset) : NULL;
    view.rank = source->ndim;
    for (axis = view.rank - 1; axis >= 0; axis--) {
        view.shape[axis] = source->shape[axis];
        view.stride[axis] = source->strides ? source->strides[axis] : (int64_t)dense;
        dense *= source->shape[axis] > 0 ? (uint64_t)source->shape[axis] : 1;
    }
    *tensor = view;
    return FWA_OK;
}

/* Views *tensor as *view on `device`. The view points at tensor's own shape and stride arrays: keep
 * *tensor alive and in place while *view is used. Returns FWA_ERROR_NULL or FWA_ERROR_DTYPE. */
static inline fwa_status fwa_tensor_to_dlpack(fwa_tensor *tensor, DLDevice device, DLTensor *view)
{
    DLDataType type;
    if (!tensor || !view)
        return FWA_ERROR_NULL;
    type = fwa_dtype_to_dlpack(tensor->dtype);
    if (type.code == 255)
        return FWA_ERROR_DTYPE;
    view->data = tensor->data;
    view->device = device;
    view->ndim = tensor->rank;
    view->dtype = type;
    view->shape = tensor->shape;
    view->strides = tensor->stride;
    view->byte_offset = 0;
    return FWA_OK;
}

#ifdef __cplusplus
}
#endif

#endif
