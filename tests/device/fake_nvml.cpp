// Stands in for libnvidia-ml.so.1: one GPU, 0000:1b:00.0, with an NVLink that is down, one that has errors, and a PCIe
// link that runs at generation 1 with 4 of 16 lanes.

#include <cstring>

extern "C" {

struct PciInfo {
  char legacy_bus_id[16];
  unsigned numbers[5];
  char bus_id[32];
};

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  static int gpu = 0;
  *device = &gpu;
  return std::strcmp(id, "0000:1b:00.0") == 0 ? 0 : 6;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned, void** device) {
  return nvmlDeviceGetHandleByPciBusId_v2("0000:1b:00.0", device);
}
int nvmlDeviceGetPciInfo_v3(void*, PciInfo* info) {
  std::strcpy(info->bus_id, "00000000:1B:00.0");
  return 0;
}
int nvmlDeviceGetName(void*, char* name, unsigned) {
  std::strcpy(name, "Fake H100");
  return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned link, int* type) {
  *type = link == 0 ? 2 : 0;  // a switch, a GPU
  return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, PciInfo* info) {
  std::strcpy(info->bus_id, "00000000:1C:00.0");
  return 0;
}
int nvmlDeviceGetNvLinkVersion(void*, unsigned, unsigned* version) {
  *version = 6;  // 4.0
  return 0;
}

int nvmlDeviceGetClockInfo(void*, int clock, unsigned* mhz) {
  *mhz = clock == 1 ? 345 : 2619;
  return 0;
}
int nvmlDeviceGetMaxClockInfo(void*, int clock, unsigned* mhz) {
  *mhz = clock == 1 ? 1980 : 2620;
  return 0;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 412'500;
  return 0;
}
int nvmlDeviceGetTemperature(void*, int, unsigned*) { return 3; }  // not supported
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = 1 << 6;
  return 0;
}

int nvmlDeviceGetCurrPcieLinkGeneration(void*, unsigned* generation) {
  *generation = 1;
  return 0;
}
int nvmlDeviceGetMaxPcieLinkGeneration(void*, unsigned* generation) {
  *generation = 5;
  return 0;
}
int nvmlDeviceGetCurrPcieLinkWidth(void*, unsigned* width) {
  *width = 4;
  return 0;
}
int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* width) {
  *width = 16;
  return 0;
}

int nvmlDeviceGetNvLinkState(void*, unsigned link, unsigned* active) {
  *active = link != 1;
  return link < 3 ? 0 : 2;
}
int nvmlDeviceGetNvLinkErrorCounter(void*, unsigned link, unsigned kind, unsigned long long* count) {
  *count = link == 2 ? kind + 1 : 0;
  return 0;
}
}
