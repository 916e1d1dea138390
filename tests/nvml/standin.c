/* Stands in for NVIDIA's libnvidia-ml.so.1 in tests: the calls that kvpin makes, over two GPUs.
 *
 * What goes wrong stands in the file that NVML_STANDIN names, and is read again in every call, so that a test can change it
 * meanwhile. Words, separated by space:
 *
 *   init=N      nvmlInit_v2 gives the error N
 *   count=N     the count of GPUs gives the error N
 *   lost=I      GPU I is lost
 *   nopower=I   GPU I doesn't tell its power, nor its limit
 *   hang        a count never returns
 *   busy=N      the utilization of each GPU, in percent
 *
 * Built with -DWITHOUT_CLOCKS it lacks a symbol.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };
enum { GPUS = 2, CLOCK_SM = 1, CLOCK_MEM = 2 };

typedef struct { unsigned index; } Device;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;

static Device devices[GPUS] = {{0}, {1}};
static const unsigned long long GIB = 1ull << 30;

/* The value of a word, or `otherwise`. A word without a value has 1. */
static long said(const char *name, long otherwise) {
    char text[256] = "";
    const char *path = getenv("NVML_STANDIN");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return otherwise;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    for (char *rest = text, *word; (word = strtok_r(rest, " \n", &rest));) {
        size_t length = strlen(name);
        if (strncmp(word, name, length) == 0 && (word[length] == '=' || word[length] == 0))
            return word[length] ? atol(word + length + 1) : 1;
    }
    return otherwise;
}

static int lost(Device *device) {
    return said("lost", -1) == (long)device->index ? GPU_IS_LOST : SUCCESS;
}

int nvmlInit_v2(void) { return (int)said("init", SUCCESS); }
int nvmlShutdown(void) { return SUCCESS; }

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    snprintf(version, length, "575.57.08");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    while (said("hang", 0)) pause();
    *count = GPUS;
    return (int)said("count", SUCCESS);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    if (index >= GPUS) return INVALID_ARGUMENT;
    *device = &devices[index];
    return lost(*device);
}

int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned length) {
    if (length < 41) return INSUFFICIENT_SIZE;
    snprintf(uuid, length, "GPU-00000000-0000-4000-8000-00000000000%x", 10 + device->index);
    return lost(device);
}

int nvmlDeviceGetName(Device *device, char *name, unsigned length) {
    snprintf(name, length, "Stand-in %u", device->index);
    return lost(device);
}

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *rates) {
    rates->gpu = (unsigned)said("busy", 40) + device->index;
    rates->memory = 5;
    return lost(device);
}

int nvmlDeviceGetMemoryInfo_v2(Device *device, Memory *memory) {
    if (memory->version != (sizeof(Memory) | 2u << 24)) return INVALID_ARGUMENT;
    memory->total = 80 * GIB;
    memory->reserved = GIB;
    memory->used = (60 + device->index) * GIB;
    memory->free = memory->total - memory->reserved - memory->used;
    return lost(device);
}

static int power(Device *device, unsigned *milliwatts, unsigned value) {
    if (said("nopower", -1) == (long)device->index) return NOT_SUPPORTED;
    *milliwatts = value;
    return lost(device);
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) { return power(device, milliwatts, 412500); }
int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *milliwatts) { return power(device, milliwatts, 700000); }

int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *celsius) {
    if (sensor != 0) return INVALID_ARGUMENT;
    *celsius = 61 + device->index;
    return lost(device);
}

#ifndef WITHOUT_CLOCKS
int nvmlDeviceGetClockInfo(Device *device, unsigned type, unsigned *mhz) {
    if (type != CLOCK_SM && type != CLOCK_MEM) return INVALID_ARGUMENT;
    *mhz = type == CLOCK_SM ? 1980 : 2619;
    return lost(device);
}
#endif
