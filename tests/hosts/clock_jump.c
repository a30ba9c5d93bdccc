/// A clock that is a day ahead on hosts that have a file /dev/shm/clock-jump.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec* time) {
  static int (*system)(clockid_t, struct timespec*);
  if (!system) system = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int result = system(clock, time);
  if (clock == CLOCK_REALTIME && access("/dev/shm/clock-jump", F_OK) == 0) time->tv_sec += 86400;
  return result;
}
