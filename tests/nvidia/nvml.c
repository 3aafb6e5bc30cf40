// Copyright (c) 2026, the lanewise authors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// A libnvidia-ml.so.1 without GPUs: it answers what NVIDIA's DRA driver asks, from a table, and remembers MIG instances.
//
// LANEWISE_NVML names a folder with
//   table  what there is, written by tests/nvidia/tree.py. One line each:
//            driver VERSION NUMBER VIRTUALIZATION       NUMBER: the CUDA version as NVML has it (12080);
//                                                       VIRTUALIZATION: NVML_GPU_VIRTUALIZATION_MODE_*
//            gpu MINOR UUID ADDRESS ID SUBSYSTEM BYTES MAJOR.MINOR ARCHITECTURE MODULE ADDRESSING MIG MODE NAME
//                                                       MIG: 0 cannot, 1 can; MODE: 1 on; ADDRESSING: -1 unsupported
//            profile ARCHITECTURE-INDEPENDENT FIELDS    of the last gpu: see add_profile()
//            instance PROFILE START                     a MIG instance of the last gpu that exists at the beginning
//   state  MIG modes and instances now; written here, read at nvmlInit, so that they outlive a driver
//   calls  one line for each call that changed something
// and, where it is set, LANEWISE_NVML_PROC is the folder in which capability files of MIG instances appear, as the kernel
// module has them below /proc/driver/nvidia.
//
// It has more than 500 lines because the library is built of this one file.
//
// The header is NVIDIA's, from the Go module go-nvml; so the layout of each structure is the real one.

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "nvml.h"

// A handle is a structure with a pointer in this header, and a pointer in the library: the same to a caller.
#define HANDLE(type, of) ((type){(void *)(of)})

#define MOST_GPUS 16
#define MOST_PROFILES 16
#define MOST_INSTANCES 7
#define MOST_STARTS 8
#define PROFILES_OF_R580 17  // NVML_GPU_INSTANCE_PROFILE_COUNT of that driver

struct profile {
    unsigned int index;  // NVML_GPU_INSTANCE_PROFILE_*
    nvmlGpuInstanceProfileInfo_t info;
    unsigned int size, starts[MOST_STARTS], count;
};

struct gpu;

// A GPU instance with its one compute instance, which is the MIG device. Its address is the handle of all three.
struct instance {
    struct gpu *gpu;
    struct profile *profile;
    unsigned int id, start;
    int used, computes;
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
};

struct gpu {
    unsigned int minor, module, architecture, mig_capable, mig_mode, persistence;
    int addressing, major_cc, minor_cc;
    unsigned int domain, bus, device, id, subsystem;
    unsigned long long memory;
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE], address[32], name[96];
    struct profile profiles[MOST_PROFILES];
    unsigned int profile_count;
    struct instance instances[MOST_INSTANCES];
};

static struct gpu gpus[MOST_GPUS];
static unsigned int gpu_count, initialized, made;
static char driver_version[80];
static int cuda_version;
static unsigned int virtualization;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// files

static FILE *file(const char *name, const char *mode)
{
    char path[4096];
    const char *folder = getenv("LANEWISE_NVML");
    if (!folder)
        return NULL;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return fopen(path, mode);
}

static void record(const char *form, ...)
{
    va_list words;
    FILE *calls = file("calls", "a");
    if (!calls)
        return;
    va_start(words, form);
    vfprintf(calls, form, words);
    va_end(words);
    fputc('\n', calls);
    fclose(calls);
}

static void capability(const char *below, const struct instance *one, const char *rest, unsigned int minor)
{
    char path[4096], *slash;
    snprintf(path, sizeof path, "%s/capabilities/gpu%u/mig/gi%u%s/access", below, one->gpu->minor, one->id, rest);
    if (!one->used) {
        unlink(path);
        return;
    }
    for (slash = path + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
    FILE *access = fopen(path, "w");
    if (access) {
        fprintf(access, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor);
        fclose(access);
    }
}

static void show(const struct instance *one)
{
    const char *below = getenv("LANEWISE_NVML_PROC");
    unsigned int first = 3 + (one->gpu->minor * 16 + one->id) * 2;  // as nvidia-caps numbers them: each its own
    if (below) {
        capability(below, one, "", first);
        capability(below, one, "/ci0", first + 1);
    }
}

static void save(void)
{
    FILE *state = file("state", "w");
    if (!state)
        return;
    fprintf(state, "made %u\n", made);
    for (unsigned int i = 0; i < gpu_count; i++) {
        fprintf(state, "mode %u %u\n", i, gpus[i].mig_mode);
        for (unsigned int k = 0; k < MOST_INSTANCES; k++) {
            const struct instance *one = &gpus[i].instances[k];
            if (one->used)
                fprintf(state, "instance %u %u %u %u %d %s\n", i, k, one->profile->info.id, one->start, one->computes,
                        one->uuid);
        }
    }
    fclose(state);
}

static struct profile *by_id(struct gpu *gpu, unsigned int id)
{
    for (unsigned int i = 0; i < gpu->profile_count; i++)
        if (gpu->profiles[i].info.id == id)
            return &gpu->profiles[i];
    return NULL;
}

static struct instance *occupy(struct gpu *gpu, unsigned int k, struct profile *profile, unsigned int start)
{
    struct instance *one = &gpu->instances[k];
    memset(one, 0, sizeof *one);
    one->gpu = gpu;
    one->profile = profile;
    one->start = start;
    one->id = k + 1;
    one->used = 1;
    // another each time one is made, as on hardware
    snprintf(one->uuid, sizeof one->uuid, "MIG-%08x-0000-5000-8000-%04x%08x", made++, gpu->minor, k);
    return one;
}

// INDEX ID SLICES INSTANCES SMS COPY DECODERS ENCODERS JPEG OFA MIB SIZE START,START...
static void add_profile(struct gpu *gpu, const char *line)
{
    struct profile *new = &gpu->profiles[gpu->profile_count];
    nvmlGpuInstanceProfileInfo_t *info = &new->info;
    char starts[64], *rest, *one;
    if (gpu->profile_count == MOST_PROFILES ||
        sscanf(line, "%u %u %u %u %u %u %u %u %u %u %llu %u %63s", &new->index, &info->id, &info->sliceCount,
               &info->instanceCount, &info->multiprocessorCount, &info->copyEngineCount, &info->decoderCount,
               &info->encoderCount, &info->jpegCount, &info->ofaCount, &info->memorySizeMB, &new->size, starts) != 13)
        abort();  // the table is wrong
    for (one = strtok_r(starts, ",", &rest); one && new->count < MOST_STARTS; one = strtok_r(NULL, ",", &rest))
        new->starts[new->count++] = (unsigned int)atoi(one);
    gpu->profile_count++;
}

static void add_gpu(const char *line)
{
    struct gpu *gpu = &gpus[gpu_count];
    memset(gpu, 0, sizeof *gpu);
    if (gpu_count == MOST_GPUS ||
        sscanf(line, "%u %79s %31s %x %x %llu %d.%d %u %u %d %u %u %95[^\n]", &gpu->minor, gpu->uuid, gpu->address,
               &gpu->id, &gpu->subsystem, &gpu->memory, &gpu->major_cc, &gpu->minor_cc, &gpu->architecture, &gpu->module,
               &gpu->addressing, &gpu->mig_capable, &gpu->mig_mode, gpu->name) != 14 ||
        sscanf(gpu->address, "%x:%x:%x", &gpu->domain, &gpu->bus, &gpu->device) != 3)
        abort();
    gpu_count++;
}

static void add_instance(struct gpu *gpu, const char *line)
{
    unsigned int id, start, k = 0;
    while (k < MOST_INSTANCES && gpu->instances[k].used)
        k++;
    if (k == MOST_INSTANCES || sscanf(line, "%u %u", &id, &start) != 2 || !by_id(gpu, id))
        abort();
    occupy(gpu, k, by_id(gpu, id), start)->computes = 1;
}

static void read_state(void)
{
    char line[256], uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    unsigned int i, k, id, start;
    int computes;
    FILE *state = file("state", "r");
    if (!state)
        return;
    for (i = 0; i < gpu_count; i++)
        memset(gpus[i].instances, 0, sizeof gpus[i].instances);
    while (fgets(line, sizeof line, state)) {
        if (sscanf(line, "mode %u %u", &i, &k) == 2 && i < gpu_count)
            gpus[i].mig_mode = k;
        else if (sscanf(line, "instance %u %u %u %u %d %95s", &i, &k, &id, &start, &computes, uuid) == 6 &&
                 i < gpu_count && k < MOST_INSTANCES && by_id(&gpus[i], id)) {
            occupy(&gpus[i], k, by_id(&gpus[i], id), start)->computes = computes;
            memcpy(gpus[i].instances[k].uuid, uuid, sizeof uuid);
        }
    }
    rewind(state);
    while (fgets(line, sizeof line, state))
        sscanf(line, "made %u", &made);
    fclose(state);
}

static nvmlReturn_t initialize(void)
{
    char line[1024];
    pthread_mutex_lock(&lock);
    if (!initialized++ && !gpu_count) {
        FILE *table = file("table", "r");
        if (!table) {
            initialized--;
            pthread_mutex_unlock(&lock);
            return NVML_ERROR_DRIVER_NOT_LOADED;
        }
        while (fgets(line, sizeof line, table)) {
            if (!strncmp(line, "driver ", 7)) {
                if (sscanf(line + 7, "%79s %d %u", driver_version, &cuda_version, &virtualization) != 3)
                    abort();
            } else if (!strncmp(line, "gpu ", 4))
                add_gpu(line + 4);
            else if (!strncmp(line, "profile ", 8) && gpu_count)
                add_profile(&gpus[gpu_count - 1], line + 8);
            else if (!strncmp(line, "instance ", 9) && gpu_count)
                add_instance(&gpus[gpu_count - 1], line + 9);
            else
                abort();
        }
        fclose(table);
        read_state();
        for (unsigned int i = 0; i < gpu_count; i++)
            for (unsigned int k = 0; k < MOST_INSTANCES; k++)
                if (gpus[i].instances[k].used)
                    show(&gpus[i].instances[k]);
    }
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit(void) { return initialize(); }
nvmlReturn_t nvmlInit_v2(void) { return initialize(); }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return initialize();
}

nvmlReturn_t nvmlShutdown(void)
{
    if (!initialized)
        return NVML_ERROR_UNINITIALIZED;
    initialized--;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    return result == NVML_SUCCESS ? "Success" : result == NVML_ERROR_NOT_SUPPORTED ? "Not Supported" : "Failed";
}

// answers

static nvmlReturn_t copy(char *to, unsigned int length, const char *from)
{
    if (strlen(from) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, from);
    return NVML_SUCCESS;
}

// Whether a handle is that of a MIG device, and the GPU of either kind.
static struct instance *mig_of(nvmlDevice_t device)
{
    const char *at = (const char *)device.handle;
    for (unsigned int i = 0; i < gpu_count; i++)
        for (unsigned int k = 0; k < MOST_INSTANCES; k++)
            if (at == (const char *)&gpus[i].instances[k])
                return &gpus[i].instances[k];
    return NULL;
}

static struct gpu *gpu_of(nvmlDevice_t device)
{
    struct instance *one = mig_of(device);
    return one ? one->gpu : (struct gpu *)(void *)device.handle;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    return copy(version, length, driver_version);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    char with_cuda[96];  // as 12.570.133.20
    snprintf(with_cuda, sizeof with_cuda, "%d.%s", cuda_version / 1000, driver_version);
    return copy(version, length, with_cuda);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    *version = cuda_version;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = gpu_count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if (index >= gpu_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = HANDLE(nvmlDevice_t, &gpus[index]);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    for (unsigned int i = 0; i < gpu_count; i++) {
        if (!strcmp(gpus[i].uuid, uuid)) {
            *device = HANDLE(nvmlDevice_t, &gpus[i]);
            return NVML_SUCCESS;
        }
        for (unsigned int k = 0; k < MOST_INSTANCES; k++)
            if (gpus[i].instances[k].computes && !strcmp(gpus[i].instances[k].uuid, uuid)) {
                *device = HANDLE(nvmlDevice_t, &gpus[i].instances[k]);
                return NVML_SUCCESS;
            }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *address, nvmlDevice_t *device)
{
    unsigned int domain, bus, slot;
    if (sscanf(address, "%x:%x:%x", &domain, &bus, &slot) != 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < gpu_count; i++)
        if (gpus[i].domain == domain && gpus[i].bus == bus && gpus[i].device == slot) {
            *device = HANDLE(nvmlDevice_t, &gpus[i]);
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

#define NUMBER(function, type, value)                                                                                  \
    nvmlReturn_t function(nvmlDevice_t device, type *answer)                                                           \
    {                                                                                                                  \
        *answer = (type)(value);                                                                                       \
        return NVML_SUCCESS;                                                                                           \
    }

NUMBER(nvmlDeviceGetIndex, unsigned int, gpu_of(device) - gpus)
NUMBER(nvmlDeviceGetMinorNumber, unsigned int, gpu_of(device)->minor)
NUMBER(nvmlDeviceGetModuleId, unsigned int, gpu_of(device)->module)
NUMBER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, gpu_of(device)->architecture)
NUMBER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, gpu_of(device)->persistence)
NUMBER(nvmlDeviceIsMigDeviceHandle, unsigned int, mig_of(device) != NULL)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned int, gpu_of(device)->mig_mode ? MOST_INSTANCES : 0)

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *brand)
{
    (void)device;
    *brand = NVML_BRAND_NVIDIA;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t *mode)
{
    (void)device;
    *mode = (nvmlGpuVirtualizationMode_t)virtualization;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    return copy(uuid, length, mig_of(device) ? mig_of(device)->uuid : gpu_of(device)->uuid);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    return copy(name, length, gpu_of(device)->name);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    const struct instance *one = mig_of(device);
    memory->total = one ? one->profile->info.memorySizeMB << 20 : gpu_of(device)->memory;
    memory->free = memory->total;
    memory->used = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    *major = gpu_of(device)->major_cc;
    *minor = gpu_of(device)->minor_cc;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *mode)
{
    if (gpu_of(device)->addressing < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    mode->value = (unsigned int)gpu_of(device)->addressing;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    const struct gpu *gpu = gpu_of(device);
    memset(pci, 0, sizeof *pci);
    pci->domain = gpu->domain;
    pci->bus = gpu->bus;
    pci->device = gpu->device;
    pci->pciDeviceId = gpu->id;
    pci->pciSubSystemId = gpu->subsystem;
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", gpu->domain & 0xffffffff, gpu->bus & 0xff,
             gpu->device & 0xff);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", gpu->domain & 0xffff, gpu->bus & 0xff,
             gpu->device & 0xff);
    return NVML_SUCCESS;
}

// what changes something

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    gpu_of(device)->persistence = mode;
    record("persistence gpu-%u %d", gpu_of(device)->minor, (int)mode);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    if (!gpu_of(device)->mig_capable)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = gpu_of(device)->mig_mode;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *status)
{
    struct gpu *gpu = gpu_of(device);
    *status = NVML_SUCCESS;
    if (!gpu->mig_capable)
        return NVML_ERROR_NOT_SUPPORTED;
    for (unsigned int k = 0; k < MOST_INSTANCES; k++)
        if (!mode && gpu->instances[k].used)
            return *status = NVML_ERROR_IN_USE;
    pthread_mutex_lock(&lock);
    gpu->mig_mode = mode;
    record("mode gpu-%u %u", gpu->minor, mode);
    save();
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int index,
                                                 nvmlGpuInstanceProfileInfo_t *info)
{
    struct gpu *gpu = gpu_of(device);
    for (unsigned int i = 0; i < gpu->profile_count; i++)
        if (gpu->profiles[i].index == index) {
            *info = gpu->profiles[i].info;
            return NVML_SUCCESS;
        }
    return index < PROFILES_OF_R580 ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                           nvmlGpuInstancePlacement_t *placements, unsigned int *count)
{
    struct profile *profile = by_id(gpu_of(device), id);
    if (!profile)
        return NVML_ERROR_NOT_SUPPORTED;
    for (unsigned int i = 0; placements && i < profile->count; i++)
        placements[i] = (nvmlGpuInstancePlacement_t){profile->starts[i], profile->size};
    *count = profile->count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int id,
                                                      const nvmlGpuInstancePlacement_t *placement,
                                                      nvmlGpuInstance_t *instance)
{
    struct gpu *gpu = gpu_of(device);
    struct profile *profile = by_id(gpu, id);
    unsigned int slices = 0, k, free = MOST_INSTANCES, legal = 0;
    if (!gpu->mig_mode || !profile)
        return NVML_ERROR_NOT_SUPPORTED;
    for (k = 0; k < profile->count; k++)
        legal |= profile->starts[k] == placement->start;
    if (!legal)
        return NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    for (k = MOST_INSTANCES; k-- > 0;) {
        const struct instance *one = &gpu->instances[k];
        if (!one->used) {
            free = k;
            continue;
        }
        slices += one->profile->info.sliceCount;
        if (placement->start < one->start + one->profile->size && one->start < placement->start + profile->size)
            slices = MOST_INSTANCES + 1;  // the memory is taken
    }
    if (free == MOST_INSTANCES || slices + profile->info.sliceCount > MOST_INSTANCES) {
        pthread_mutex_unlock(&lock);
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    }
    *instance = HANDLE(nvmlGpuInstance_t, occupy(gpu, free, profile, placement->start));
    show(&gpu->instances[free]);
    record("create gpu-%u profile %u at %u", gpu->minor, id, placement->start);
    save();
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    struct instance *one = (struct instance *)(void *)instance.handle;
    if (one->computes)
        return NVML_ERROR_IN_USE;
    pthread_mutex_lock(&lock);
    one->used = 0;
    show(one);
    record("destroy gpu-%u profile %u at %u", one->gpu->minor, one->profile->info.id, one->start);
    save();
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance)
{
    struct gpu *gpu = gpu_of(device);
    if (!id || id > MOST_INSTANCES || !gpu->instances[id - 1].used)
        return NVML_ERROR_NOT_FOUND;
    *instance = HANDLE(nvmlGpuInstance_t, &gpu->instances[id - 1]);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    const struct instance *one = (struct instance *)(void *)instance.handle;
    info->device = HANDLE(nvmlDevice_t, one->gpu);
    info->id = one->id;
    info->profileId = one->profile->info.id;
    info->placement = (nvmlGpuInstancePlacement_t){one->start, one->profile->size};
    return NVML_SUCCESS;
}

// The slices of a compute instance profile; 0: no such profile here.
static unsigned int compute_slices(unsigned int index)
{
    static const unsigned int slices[] = {1, 2, 3, 4, 7, 8, 6, 1};
    return index < sizeof slices / sizeof *slices ? slices[index] : 0;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int index,
                                                          unsigned int engines, nvmlComputeInstanceProfileInfo_t *info)
{
    const struct instance *one = (struct instance *)(void *)instance.handle;
    const nvmlGpuInstanceProfileInfo_t *whole = &one->profile->info;
    unsigned int slices = compute_slices(index);
    if (engines || !slices || slices > whole->sliceCount)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    info->id = index;
    info->sliceCount = slices;
    info->instanceCount = whole->sliceCount / slices;
    info->multiprocessorCount = whole->multiprocessorCount * slices / whole->sliceCount;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned int id,
                                                  nvmlComputeInstance_t *compute)
{
    struct instance *one = (struct instance *)(void *)instance.handle;
    if (one->computes)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    if (compute_slices(id) != one->profile->info.sliceCount)
        return NVML_ERROR_NOT_SUPPORTED;  // the driver makes whole ones only
    pthread_mutex_lock(&lock);
    one->computes = 1;
    record("compute gpu-%u profile %u at %u", one->gpu->minor, one->profile->info.id, one->start);
    save();
    pthread_mutex_unlock(&lock);
    *compute = HANDLE(nvmlComputeInstance_t, one);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute)
{
    struct instance *one = (struct instance *)(void *)compute.handle;
    pthread_mutex_lock(&lock);
    one->computes = 0;
    record("undo compute gpu-%u profile %u at %u", one->gpu->minor, one->profile->info.id, one->start);
    save();
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id,
                                                   nvmlComputeInstance_t *compute)
{
    if (id || !((struct instance *)(void *)instance.handle)->computes)
        return NVML_ERROR_NOT_FOUND;
    *compute = HANDLE(nvmlComputeInstance_t, instance.handle);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info)
{
    const struct instance *one = (struct instance *)(void *)compute.handle;
    memset(info, 0, sizeof *info);
    info->device = HANDLE(nvmlDevice_t, one);
    info->gpuInstance = HANDLE(nvmlGpuInstance_t, one);
    while (compute_slices(info->profileId) != one->profile->info.sliceCount)
        info->profileId++;
    info->placement.size = one->profile->info.sliceCount;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    struct gpu *gpu = gpu_of(device);
    if (index >= MOST_INSTANCES)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!gpu->instances[index].computes)
        return NVML_ERROR_NOT_FOUND;
    *mig = HANDLE(nvmlDevice_t, &gpu->instances[index]);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    *device = HANDLE(nvmlDevice_t, gpu_of(mig));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    if (!mig_of(device))
        return NVML_ERROR_INVALID_ARGUMENT;
    *id = mig_of(device)->id;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    if (!mig_of(device))
        return NVML_ERROR_INVALID_ARGUMENT;
    *id = 0;
    return NVML_SUCCESS;
}
