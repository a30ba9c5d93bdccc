# Functions for the scripts of this folder.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '== %s\n' "$*"; }
warn() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
die() {
  warn "$@"
  exit 2
}

# needs_value FLAG WHAT [VALUE]: ends the script if the flag has no value.
needs_value() { [[ -n ${3:-} ]] || die "$1 takes $2"; }

# Prints the comment at the top of the script, and ends it, if one of the arguments asks for help.
answer_help() {
  local argument
  for argument in "$@"; do
    [[ $argument == -h || $argument == --help ]] || continue
    sed -n '2,/^[^#]/s/^# \?//p' "$0"
    exit 0
  done
}

# The CUDA toolkit installs its compiler in a folder that is not in PATH.
if ! command -v nvcc >/dev/null && [[ -x /usr/local/cuda/bin/nvcc ]]; then
  PATH=$PATH:/usr/local/cuda/bin
fi

# Open MPI starts as root only if both variables are set.
if [[ $(id -u) == 0 ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# Flags of mpirun that hand NCCL's variables on to other hosts. Open MPI hands on its own by itself.
export_nccl() { compgen -e NCCL_ | sed 's/^/-x /'; }

is_open_mpi() { mpirun --version 2>/dev/null | grep -qE 'Open MPI|OpenRTE|PRRTE'; }

# What mpirun needs to start any number of ranks, bound to nothing: only Open MPI knows these flags and needs them.
mpirun_flags() {
  if is_open_mpi; then
    echo --bind-to none --oversubscribe
  fi
}

# in_sanitizer_environment address|thread|"" COMMAND...: with what programs that were built with that sanitizer need.
in_sanitizer_environment() {
  local sanitizer=$1
  shift
  case $sanitizer in
    address)
      ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=1:strict_string_checks=1:verify_asan_link_order=0 \
        UBSAN_OPTIONS=print_stacktrace=1 "$@"
      ;;
    thread)
      # Older ThreadSanitizers do not start where addresses are too random.
      local fixed=()
      if setarch "$(uname -m)" -R true 2>/dev/null; then fixed=(setarch "$(uname -m)" -R); fi
      TSAN_OPTIONS=suppressions=$root/tests/sanitize/tsan.supp:ignore_noninstrumented_modules=1:halt_on_error=1 \
        "${fixed[@]}" "$@"
      ;;
    *) "$@" ;;
  esac
}

# The number of GPUs that a program would see.
gpu_count() {
  if ! command -v nvidia-smi >/dev/null; then
    echo 0
  elif [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
    tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c . || true
  else
    { nvidia-smi -L 2>/dev/null || true; } | grep -c '^GPU' || true
  fi
}

# Whether the build in folder $1 includes CUDA.
built_with_cuda() { grep -q '^DDPTRAIN_CUDA_BACKEND:INTERNAL=ON$' "$1/CMakeCache.txt"; }

# How many test cases skipped themselves, by ctest's log $1: GoogleTest and unittest say so, scripts print "skipped: WHY".
skipped_tests() {
  awk '
    /^\[  SKIPPED \].*ms\)$/ { cpp++ }
    /^(OK|FAILED|NO TESTS RAN) \(/ && match($0, /skipped=[0-9]+/) { others += substr($0, RSTART + 8, RLENGTH - 8) }
    /^skipped: / { others++ }
    END { printf "%d in C++, %d in Python and scripts\n", cpp, others }' "$1"
}

# configure DIR [CMAKE ARGUMENT...]
configure() {
  local dir=$1
  shift
  local generator=()
  [[ -e $dir/CMakeCache.txt ]] || generator=(-G Ninja)
  cmake -S "$root" -B "$dir" "${generator[@]}" "$@"
}
