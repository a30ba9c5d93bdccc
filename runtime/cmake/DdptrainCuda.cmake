# Decides whether the CUDA backend is built: sets DDPTRAIN_WITH_CUDA and, if so, enables the language and defines
# ddp_cuda_libraries (CUDA runtime, cuBLASLt, cuDNN, NCCL, NVML's loader).

include(CheckLanguage)
include(DdptrainCudaArchitectures)

set(DDPTRAIN_WITH_CUDA OFF)
if(NOT DDPTRAIN_CUDA STREQUAL "OFF")
  ddp_cuda_architectures(CMAKE_CUDA_ARCHITECTURES ${DDPTRAIN_CUDA_ARCHITECTURES})
  check_language(CUDA)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS /usr/local/cuda/include)
  find_library(NCCL_LIBRARY nccl HINTS /usr/local/cuda/lib64 /usr/local/lib)
  find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS /usr/local/cuda/include)
  find_library(CUDNN_LIBRARY cudnn HINTS /usr/local/cuda/lib64 /usr/local/lib)
  find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h HINTS ${DDPTRAIN_CUDNN_FRONTEND})
  set(missing "")
  foreach(part CMAKE_CUDA_COMPILER NCCL_INCLUDE_DIR NCCL_LIBRARY CUDNN_INCLUDE_DIR CUDNN_LIBRARY
               CUDNN_FRONTEND_INCLUDE_DIR)
    if(NOT ${part})
      list(APPEND missing ${part})
    endif()
  endforeach()
  if(missing STREQUAL "")
    set(DDPTRAIN_WITH_CUDA ON)
  elseif(DDPTRAIN_CUDA STREQUAL "ON")
    message(FATAL_ERROR "DDPTRAIN_CUDA=ON, but not found: ${missing}. Run launch/setup, or set these variables.")
  endif()
  if(NOT DDPTRAIN_WITH_CUDA)
    message(STATUS "CUDA backend: off (not found: ${missing})")
  endif()
endif()
set(DDPTRAIN_CUDA_BACKEND ${DDPTRAIN_WITH_CUDA} CACHE INTERNAL "What DDPTRAIN_CUDA came to; launch/ reads it")

if(DDPTRAIN_WITH_CUDA)
  enable_language(CUDA)
  if(CMAKE_VERSION VERSION_LESS 3.26)  # does not know nvcc's option for C++20
    set(CMAKE_CUDA_STANDARD_REQUIRED OFF)  # else that of C++ holds
    string(APPEND CMAKE_CUDA_FLAGS " -std=c++20")
  else()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
  find_package(CUDAToolkit REQUIRED)
  message(STATUS "CUDA backend: on (toolkit ${CUDAToolkit_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES})")
  add_library(ddp_cuda_libraries INTERFACE)
  target_include_directories(ddp_cuda_libraries SYSTEM INTERFACE
    "$<BUILD_INTERFACE:${CUDNN_FRONTEND_INCLUDE_DIR};${CUDNN_INCLUDE_DIR};${NCCL_INCLUDE_DIR}>")
  if("${CMAKE_CUDA_ARCHITECTURES}" MATCHES "90a")
    target_compile_definitions(ddp_cuda_libraries INTERFACE $<BUILD_INTERFACE:DDPTRAIN_CODE_90A>)
  endif()
  target_link_libraries(ddp_cuda_libraries INTERFACE
    CUDA::cudart CUDA::cublasLt ${CUDNN_LIBRARY} ${NCCL_LIBRARY} ${CMAKE_DL_LIBS})
endif()
