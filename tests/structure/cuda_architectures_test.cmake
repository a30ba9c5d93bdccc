# cmake -P: what ddp_cuda_architectures() chooses, with programs in place of nvcc and nvidia-smi.

cmake_minimum_required(VERSION 3.22)
include(${CMAKE_CURRENT_LIST_DIR}/../../runtime/cmake/DdptrainCudaArchitectures.cmake)
set(folder ${CMAKE_CURRENT_BINARY_DIR}/cuda_architectures_test)
file(MAKE_DIRECTORY ${folder})

function(make_program name output status)
  file(WRITE ${folder}/${name} "#!/bin/sh\nprintf '${output}'\nexit ${status}\n")
  file(CHMOD ${folder}/${name} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()

function(expect wanted expected)
  ddp_cuda_architectures(chosen ${wanted})
  if(NOT "${chosen}" STREQUAL "${expected}")
    message(SEND_ERROR "${wanted}: chose ${chosen}, expected ${expected}")
  endif()
endfunction()

set(DDPTRAIN_NVCC ${folder}/nvcc)
set(DDPTRAIN_NVIDIA_SMI ${folder}/nvidia-smi)
make_program(nvcc "compute_75\\ncompute_80\\ncompute_90\\ncompute_120\\n" 0)

make_program(nvidia-smi "8.0\\n8.0\\n" 0)
expect(native "80-real")
make_program(nvidia-smi "9.0\\n7.5\\n" 0)
expect(native "90a-real;75-real")
make_program(nvidia-smi "8.6\\n" 0)  # unknown to this nvcc
expect(native "80-virtual")
make_program(nvidia-smi "13.0\\n" 0)
expect(native "120-virtual")
make_program(nvidia-smi "No devices were found\\n" 6)
expect(native "90a-real")
set(DDPTRAIN_NVIDIA_SMI "")
expect(native "90a-real")
expect(fat "75-real;80-real;90a-real;120-real;120-virtual")
expect("80-virtual;90a" "80-virtual;90a")
