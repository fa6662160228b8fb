/*
 * t/backend/cuda_abi.c - the declarations of driver.h and cublaslt_api.h agree with cuda.h and
 * cublasLt.h. The compiler checks them if these headers are installed.
 */
#include "config.h"

#include <stddef.h>

#ifdef HAVE_CUDATYPEDEFS_H
#include <cuda.h>
#include <cudaTypedefs.h>
#endif

#ifdef HAVE_CUBLASLT_H
#include <cublasLt.h>
#endif

#include "kernels/gemm/sm90.h"
#include "libtecore/backend/cuda/cublaslt_api.h"
#include "libtecore/backend/cuda/driver.h"
#include "tt.h"

#define SAME(own, cuda) _Static_assert((int)(own) == (int)(cuda), #cuda)
#define SIZE(own, cuda) _Static_assert(sizeof(own) == sizeof(cuda), "size of " #cuda)
#define PLACE(own, a, cuda, b) \
	_Static_assert(offsetof(own, a) == offsetof(cuda, b), #cuda "." #b)

#ifdef HAVE_CUDATYPEDEFS_H

SAME(TE__CU_SUCCESS, CUDA_SUCCESS);
SAME(TE__CU_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(TE__CU_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(TE__CU_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(TE__CU_ERROR_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(TE__CU_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
SAME(TE__CU_ERROR_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(TE__CU_ERROR_CAPTURE_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME(TE__CU_ERROR_CAPTURE_MERGE, CUDA_ERROR_STREAM_CAPTURE_MERGE);
SAME(TE__CU_ERROR_CAPTURE_UNJOINED, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
SAME(TE__CU_ERROR_CAPTURE_ISOLATION, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
SAME(TE__CU_ERROR_CAPTURED_EVENT, CUDA_ERROR_CAPTURED_EVENT);
SAME(TE__CU_ERROR_GRAPH_EXEC_UPDATE_FAILURE, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
SAME(TE__CU_ERROR_UNKNOWN, CUDA_ERROR_UNKNOWN);
SAME(TE__CU_ATTR_CLOCK_RATE, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
SAME(TE__CU_ATTR_MULTIPROCESSOR_COUNT, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(TE__CU_ATTR_MEMORY_CLOCK_RATE, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
SAME(TE__CU_ATTR_GLOBAL_MEMORY_BUS_WIDTH, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
SAME(TE__CU_ATTR_L2_CACHE_SIZE, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME(TE__CU_ATTR_CLUSTER_LAUNCH, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH);
SAME(TE__CU_ATTR_64_BIT_MEM_OPS, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
SAME(TE__CU_ATTR_TENSOR_MAP, CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED);
SAME(TE__CU_ATTR_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(TE__CU_ATTR_COMPUTE_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(TE__CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
     CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME(TE__CU_POOL_RELEASE_THRESHOLD, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
SAME(TE__CU_POOL_RESERVED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
SAME(TE__CU_POOL_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
SAME(TE__CU_POOL_USED_MEM_HIGH, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
SAME(TE__CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(TE__CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(TE__CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME(TE__CU_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
SAME(TE__CU_ATTR_VMM, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME(TE__CU_ATTR_HANDLE_POSIX_FD, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME(TE__CU_ATTR_GPU_DIRECT_RDMA_WITH_VMM,
     CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME(TE__CU_ATTR_HANDLE_FABRIC, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
SAME(TE__CU_ATTR_MULTICAST, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED);
SAME(TE__CU_MEM_GRANULARITY_MINIMUM, CU_MULTICAST_GRANULARITY_MINIMUM);
SAME(TE__CU_HOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME(TE__CU_HOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME(TE__CU_MEM_HANDLE_POSIX_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(TE__CU_MEM_HANDLE_FABRIC, CU_MEM_HANDLE_TYPE_FABRIC);
SAME(TE__CU_FABRIC_HANDLE_NBYTES, sizeof(CUmemFabricHandle));
SAME(TE__CU_MEM_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME(TE__CU_MEM_GRANULARITY_RECOMMENDED, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
SAME(TE__CU_MEM_ACCESS_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(TE__CU_FUNC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
SAME(TE__CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(TE__CU_TENSOR_MAP_UINT8, CU_TENSOR_MAP_DATA_TYPE_UINT8);
SAME(TE__CU_TENSOR_MAP_FLOAT32, CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
SAME(TE__CU_TENSOR_MAP_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
SAME(TE__CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_SWIZZLE_128B);
SAME(TE__CU_TENSOR_MAP_L2_256B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
SIZE(struct te_tensor_map, CUtensorMap);
SAME(TE__CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(TE__CU_EVENT_DEFAULT, CU_EVENT_DEFAULT);
SAME(TE__CU_EVENT_RECORD_EXTERNAL, CU_EVENT_RECORD_EXTERNAL);
SAME(TE__CU_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME(TE__CU_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(TE__CU_CAPTURE_STATUS_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(TE__CU_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME(TE__CU_NODE_KERNEL, CU_GRAPH_NODE_TYPE_KERNEL);
SAME(TE__CU_NODE_MEMCPY, CU_GRAPH_NODE_TYPE_MEMCPY);
SAME(TE__CU_NODE_MEMSET, CU_GRAPH_NODE_TYPE_MEMSET);
SAME(TE__CU_NODE_HOST, CU_GRAPH_NODE_TYPE_HOST);
SAME(TE__CU_NODE_EMPTY, CU_GRAPH_NODE_TYPE_EMPTY);
SAME(TE__CU_NODE_WAIT_EVENT, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
SAME(TE__CU_NODE_EVENT_RECORD, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
SAME(TE__CU_NODE_MEM_OP, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
SAME(TE__CU_MEM_OP_WAIT_32, CU_STREAM_MEM_OP_WAIT_VALUE_32);
SAME(TE__CU_MEM_OP_WRITE_32, CU_STREAM_MEM_OP_WRITE_VALUE_32);
SAME(TE__CU_WAIT_GEQ, CU_STREAM_WAIT_VALUE_GEQ);
SAME(TE__CU_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME(TE__CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_HOST);

SIZE(int, CUresult);
SIZE(int, CUdevice);
SIZE(uint64_t, CUdeviceptr);
SIZE(uint64_t, cuuint64_t);
SIZE(int, CUstreamCaptureMode);
SIZE(int, CUgraphNodeType);
SIZE(void *, CUhostFn);
SIZE(struct te__cu_location, CUmemLocation);
PLACE(struct te__cu_location, type, CUmemLocation, type);
PLACE(struct te__cu_location, id, CUmemLocation, id);
SIZE(struct te__cu_pool_props, CUmemPoolProps);
PLACE(struct te__cu_pool_props, alloc_type, CUmemPoolProps, allocType);
PLACE(struct te__cu_pool_props, handle_types, CUmemPoolProps, handleTypes);
PLACE(struct te__cu_pool_props, location, CUmemPoolProps, location);
PLACE(struct te__cu_pool_props, win32_security, CUmemPoolProps, win32SecurityAttributes);
PLACE(struct te__cu_pool_props, max_size, CUmemPoolProps, maxSize);
PLACE(struct te__cu_pool_props, usage, CUmemPoolProps, usage);
PLACE(struct te__cu_pool_props, reserved, CUmemPoolProps, reserved);
SIZE(uint64_t, CUmemGenericAllocationHandle);
SIZE(struct te__cu_mem_props, CUmemAllocationProp);
PLACE(struct te__cu_mem_props, type, CUmemAllocationProp, type);
PLACE(struct te__cu_mem_props, handle_types, CUmemAllocationProp, requestedHandleTypes);
PLACE(struct te__cu_mem_props, location, CUmemAllocationProp, location);
PLACE(struct te__cu_mem_props, compression, CUmemAllocationProp, allocFlags.compressionType);
PLACE(struct te__cu_mem_props, rdma_capable, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
PLACE(struct te__cu_mem_props, usage, CUmemAllocationProp, allocFlags.usage);
SIZE(struct te__cu_mem_access, CUmemAccessDesc);
PLACE(struct te__cu_mem_access, flags, CUmemAccessDesc, flags);
SIZE(struct te__cu_multicast_props, CUmulticastObjectProp);
PLACE(struct te__cu_multicast_props, ndevices, CUmulticastObjectProp, numDevices);
PLACE(struct te__cu_multicast_props, nbytes, CUmulticastObjectProp, size);
PLACE(struct te__cu_multicast_props, handle_types, CUmulticastObjectProp, handleTypes);
PLACE(struct te__cu_multicast_props, flags, CUmulticastObjectProp, flags);
SIZE(struct te__cu_launch_config, CUlaunchConfig);
PLACE(struct te__cu_launch_config, grid[0], CUlaunchConfig, gridDimX);
PLACE(struct te__cu_launch_config, grid[2], CUlaunchConfig, gridDimZ);
PLACE(struct te__cu_launch_config, block[0], CUlaunchConfig, blockDimX);
PLACE(struct te__cu_launch_config, block[2], CUlaunchConfig, blockDimZ);
PLACE(struct te__cu_launch_config, smem, CUlaunchConfig, sharedMemBytes);
PLACE(struct te__cu_launch_config, stream, CUlaunchConfig, hStream);
PLACE(struct te__cu_launch_config, attrs, CUlaunchConfig, attrs);
PLACE(struct te__cu_launch_config, nattrs, CUlaunchConfig, numAttrs);
SIZE(struct te__cu_kernel_params, CUDA_KERNEL_NODE_PARAMS_v2);
PLACE(struct te__cu_kernel_params, func, CUDA_KERNEL_NODE_PARAMS_v2, func);
PLACE(struct te__cu_kernel_params, grid[0], CUDA_KERNEL_NODE_PARAMS_v2, gridDimX);
PLACE(struct te__cu_kernel_params, block[0], CUDA_KERNEL_NODE_PARAMS_v2, blockDimX);
PLACE(struct te__cu_kernel_params, smem, CUDA_KERNEL_NODE_PARAMS_v2, sharedMemBytes);
PLACE(struct te__cu_kernel_params, params, CUDA_KERNEL_NODE_PARAMS_v2, kernelParams);
PLACE(struct te__cu_kernel_params, extra, CUDA_KERNEL_NODE_PARAMS_v2, extra);
PLACE(struct te__cu_kernel_params, kern, CUDA_KERNEL_NODE_PARAMS_v2, kern);
PLACE(struct te__cu_kernel_params, ctx, CUDA_KERNEL_NODE_PARAMS_v2, ctx);
SIZE(struct te__cu_memcpy_params, CUDA_MEMCPY3D_v2);
PLACE(struct te__cu_memcpy_params, src.x, CUDA_MEMCPY3D_v2, srcXInBytes);
PLACE(struct te__cu_memcpy_params, src.lod, CUDA_MEMCPY3D_v2, srcLOD);
PLACE(struct te__cu_memcpy_params, src.type, CUDA_MEMCPY3D_v2, srcMemoryType);
PLACE(struct te__cu_memcpy_params, src.host, CUDA_MEMCPY3D_v2, srcHost);
PLACE(struct te__cu_memcpy_params, src.dev, CUDA_MEMCPY3D_v2, srcDevice);
PLACE(struct te__cu_memcpy_params, src.array, CUDA_MEMCPY3D_v2, srcArray);
PLACE(struct te__cu_memcpy_params, src.pitch, CUDA_MEMCPY3D_v2, srcPitch);
PLACE(struct te__cu_memcpy_params, dst.x, CUDA_MEMCPY3D_v2, dstXInBytes);
PLACE(struct te__cu_memcpy_params, dst.type, CUDA_MEMCPY3D_v2, dstMemoryType);
PLACE(struct te__cu_memcpy_params, dst.host, CUDA_MEMCPY3D_v2, dstHost);
PLACE(struct te__cu_memcpy_params, dst.dev, CUDA_MEMCPY3D_v2, dstDevice);
PLACE(struct te__cu_memcpy_params, dst.height, CUDA_MEMCPY3D_v2, dstHeight);
PLACE(struct te__cu_memcpy_params, width, CUDA_MEMCPY3D_v2, WidthInBytes);
PLACE(struct te__cu_memcpy_params, depth, CUDA_MEMCPY3D_v2, Depth);
SIZE(struct te__cu_memset_params, CUDA_MEMSET_NODE_PARAMS_v1);
PLACE(struct te__cu_memset_params, dst, CUDA_MEMSET_NODE_PARAMS_v1, dst);
PLACE(struct te__cu_memset_params, value, CUDA_MEMSET_NODE_PARAMS_v1, value);
PLACE(struct te__cu_memset_params, elem, CUDA_MEMSET_NODE_PARAMS_v1, elementSize);
PLACE(struct te__cu_memset_params, width, CUDA_MEMSET_NODE_PARAMS_v1, width);
PLACE(struct te__cu_memset_params, height, CUDA_MEMSET_NODE_PARAMS_v1, height);
SIZE(struct te__cu_mem_op, CUstreamBatchMemOpParams);
PLACE(struct te__cu_mem_op, address, CUstreamBatchMemOpParams, waitValue.address);
PLACE(struct te__cu_mem_op, value, CUstreamBatchMemOpParams, waitValue.value);
PLACE(struct te__cu_mem_op, flags, CUstreamBatchMemOpParams, waitValue.flags);
PLACE(struct te__cu_mem_op, alias, CUstreamBatchMemOpParams, writeValue.alias);
SIZE(struct te__cu_update_result, CUgraphExecUpdateResultInfo_v1);
PLACE(struct te__cu_update_result, node, CUgraphExecUpdateResultInfo_v1, errorNode);
SIZE(struct te__cu_edge_data, CUgraphEdgeData);
PLACE(struct te__cu_edge_data, type, CUgraphEdgeData, type);

/* each version is one that has a form of the function */
#define TE__CU(name, version, args) SIZE(void *, PFN_##name##_v##version);
#include "libtecore/backend/cuda/syms.def"
#include "libtecore/backend/cuda/multicast.def"
#undef TE__CU

#endif

#ifdef HAVE_CUBLASLT_H

SAME(TE__LT_COMPUTE_32F, CUBLAS_COMPUTE_32F);
SAME(TE__LT_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_32F_FAST_TF32);
SAME(TE__LT_R_32F, CUDA_R_32F);
SAME(TE__LT_R_16BF, CUDA_R_16BF);
SAME(TE__LT_R_8F_E4M3, CUDA_R_8F_E4M3);
SAME(TE__LT_R_8F_E5M2, CUDA_R_8F_E5M2);
#if CUBLAS_VERSION >= 120800 /* with block-scaled modes */
SAME(TE__LT_R_4F_E2M1, CUDA_R_4F_E2M1);
SAME(TE__LT_SCALE_VEC16_UE4M3, CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3);
SAME(TE__LT_SCALE_VEC32_UE8M0, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0);
#endif
SAME(TE__LT_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED);
SAME(TE__LT_POINTER_MODE_DEVICE, CUBLASLT_POINTER_MODE_DEVICE);
SAME(TE__LT_OP_N, CUBLAS_OP_N);
SAME(TE__LT_OP_T, CUBLAS_OP_T);
SAME(TE__LT_DESC_POINTER_MODE, CUBLASLT_MATMUL_DESC_POINTER_MODE);
SAME(TE__LT_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(TE__LT_DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB);
SAME(TE__LT_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME(TE__LT_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME(TE__LT_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
SAME(TE__LT_DESC_B_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
SAME(TE__LT_DESC_FAST_ACCUM, CUBLASLT_MATMUL_DESC_FAST_ACCUM);
SAME(TE__LT_DESC_BIAS_DATA_TYPE, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
#if CUBLAS_VERSION >= 120900
SAME(TE__LT_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_A_SCALE_MODE);
SAME(TE__LT_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE);
SAME(TE__LT_SCALE_VEC128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
SAME(TE__LT_SCALE_BLK128X128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
#endif
SAME(TE__LT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS);
SAME(TE__LT_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(TE__LT_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(TE__LT_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
SAME(TE__LT_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
SAME(TE__LT_PREF_MIN_ALIGNMENT_D_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
SAME(TE__LT_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
SAME(TE__LT_REDUCTION_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
SIZE(int, cublasStatus_t);
SIZE(int, cublasComputeType_t);
SIZE(int, cudaDataType);
SIZE(struct te__lt_algo, cublasLtMatmulAlgo_t);
SIZE(struct te__lt_heuristic, cublasLtMatmulHeuristicResult_t);
PLACE(struct te__lt_heuristic, algo, cublasLtMatmulHeuristicResult_t, algo);
PLACE(struct te__lt_heuristic, workspace_nbytes, cublasLtMatmulHeuristicResult_t, workspaceSize);
PLACE(struct te__lt_heuristic, state, cublasLtMatmulHeuristicResult_t, state);
PLACE(struct te__lt_heuristic, waves, cublasLtMatmulHeuristicResult_t, wavesCount);

#endif

CASE(driver, "host fast");

/* a missing entry of the driver table would be called through NULL */
TEST(driver, every_entry_has_an_offset)
{
	static const struct {
		const char *name;
		int version;
		size_t offset;
	} row[] = {
#define TE__CU(name, version, args) \
	{ #name, version, offsetof(struct te__cuda_driver, name) },
#include "libtecore/backend/cuda/syms.def"
#undef TE__CU
	};

	ck_assert_uint_eq(TT_LEN(row) * sizeof(void *), sizeof(struct te__cuda_driver));
	for (size_t i = 0; i < TT_LEN(row); i++) {
		ck_assert_uint_eq(row[i].offset, i * sizeof(void *));
		ck_assert_int_ge(row[i].version, 2000);
		ck_assert_ptr_null(strstr(row[i].name, "Multicast"));
		ck_assert_ptr_null(strstr(row[i].name, "Managed"));
	}
}

TT_MAIN("backend/cuda_abi", TT_NEED_NOTHING)
