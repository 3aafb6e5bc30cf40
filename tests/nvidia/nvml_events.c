// Copyright (c) 2026, the lanewise authors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// NVML's events, for nvml.c: GPUs to which nothing ever happens.
#include <poll.h>

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "nvml.h"

static int the_set; // its address is all that a caller has of it

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    set->handle = (void *)&the_set;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    return set.handle == (void *)&the_set ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    (void)device;
    *types = 0xff9f;  // as an H100 has them
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    (void)device, (void)types;
    return nvmlEventSetFree(set);
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int milliseconds)
{
    (void)set, (void)data;
    poll(0, 0, (int)milliseconds);
    return NVML_ERROR_TIMEOUT;
}
