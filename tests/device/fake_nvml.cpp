// Stands in for libnvidia-ml.so.1: two GPUs, each with an NVLink that is down, one that has errors, and a PCIe link
// that runs at generation 1 with 4 of 16 lanes. The first has one NVLink to a switch and one to the second. The second
// says that two go to the first.

#include <cstring>

namespace {

const char* gpus[] = {"0000:1b:00.0", "0000:1c:00.0"};  // their addresses are the handles

int index_of(void* device) { return device == &gpus[1]; }

}  // namespace

extern "C" {

struct PciInfo {
  char legacy_bus_id[16];
  unsigned numbers[5];
  char bus_id[32];
};

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  for (const char*& gpu : gpus) {
    if (std::strcmp(id, gpu) != 0) continue;
    *device = &gpu;
    return 0;
  }
  return 6;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  return nvmlDeviceGetHandleByPciBusId_v2(gpus[index], device);
}
int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* info) {
  std::strcpy(info->bus_id, index_of(device) == 0 ? "00000000:1B:00.0" : "00000000:1C:00.0");
  return 0;
}
int nvmlDeviceGetName(void*, char* name, unsigned) {
  std::strcpy(name, "Fake H100");
  return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void* device, unsigned link, int* type) {
  *type = index_of(device) == 0 && link == 0 ? 2 : 0;  // a switch, a GPU
  return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned, PciInfo* info) {
  std::strcpy(info->bus_id, index_of(device) == 0 ? "00000000:1C:00.0" : "00000000:1B:00.0");
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
