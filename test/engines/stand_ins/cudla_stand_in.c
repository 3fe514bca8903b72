/* A stand-in for libcudla, libnvscibuf and libnvscisync, strict about handles and order.
 *
 * Built against NVIDIA's cudla.h, so that its functions have the real signatures. What a task
 * computes is asked of a callback. In hybrid mode tensors are addresses of a stand-in for CUDA,
 * which only the callback can read; in standalone mode they are memory of this process.
 *
 * A loadable of the stand-in holds, after the flatbuffer's identifier, a number of a program that
 * the test has described with stand_in_describe.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cudla.h"

#define MAX_TENSORS 8
#define MAX_MEMORY 256

typedef int (*compute_t)(int program, uint64_t *inputs, uint64_t *outputs, void *stream);

static struct {
    cudlaModuleTensorDescriptor inputs[MAX_TENSORS], outputs[MAX_TENSORS];
    uint32_t num_inputs, num_outputs;
} program;

static compute_t compute;
static uint64_t cores = 2;
static char fail_in[64];
static int fail_with;
static uint32_t timeout_ms;
static int hang_ms;
static char fault[256];

struct cudlaDevHandle_t {
    int alive, mode;
    cudlaModule module;
    int last_error;
};
struct cudlaModule_t {
    int alive;
    cudlaDevHandle device;
};
struct memory {
    int alive;
    cudlaDevHandle device;
    uint64_t address;
    size_t size;
    void *sync;
};

static int live_devices, live_modules, live_memories, live_sci;
static struct memory memories[MAX_MEMORY];

void stand_in_reset(compute_t function, uint64_t number_of_cores)
{
    compute = function;
    cores = number_of_cores;
    fail_in[0] = fault[0] = 0;
    fail_with = hang_ms = 0;
    timeout_ms = 30000;
    memset(memories, 0, sizeof(memories));
    live_devices = live_modules = live_memories = live_sci = 0;
    memset(&program, 0, sizeof(program));
}

void stand_in_describe(int output, const cudlaModuleTensorDescriptor *descriptor)
{
    if (output)
        program.outputs[program.num_outputs++] = *descriptor;
    else
        program.inputs[program.num_inputs++] = *descriptor;
}

void stand_in_fail(const char *function, int status)
{
    snprintf(fail_in, sizeof(fail_in), "%s", function);
    fail_with = status;
}

void stand_in_hang(int milliseconds) { hang_ms = milliseconds; }
int stand_in_timeout(void) { return (int)timeout_ms; }
const char *stand_in_fault(void) { return fault; }

int stand_in_alive(int what)
{
    int counts[] = {live_devices, live_modules, live_memories, live_sci};
    return counts[what];
}

static int injected(const char *function)
{
    if (strcmp(fail_in, function))
        return 0;
    fail_in[0] = 0;
    return fail_with;
}

#define INJECT()                              \
    do {                                      \
        int status = injected(__func__);      \
        if (status)                           \
            return (cudlaStatus)status;       \
    } while (0)

static cudlaStatus wrong(cudlaStatus status, const char *text)
{
    if (!fault[0])
        snprintf(fault, sizeof(fault), "%s", text);
    return status;
}

cudlaStatus cudlaGetVersion(uint64_t *const version)
{
    INJECT();
    *version = 1000000u * CUDLA_VER_MAJOR + 1000u * CUDLA_VER_MINOR + CUDLA_VER_PATCH;
    return cudlaSuccess;
}

cudlaStatus cudlaDeviceGetCount(uint64_t *const count)
{
    INJECT();
    *count = cores;
    return cudlaSuccess;
}

cudlaStatus cudlaCreateDevice(uint64_t const device, cudlaDevHandle *const handle,
                              uint32_t const flags)
{
    INJECT();
    if (device >= cores || flags > CUDLA_STANDALONE)
        return wrong(cudlaErrorInvalidParam, "cudlaCreateDevice: no such device or mode");
    *handle = calloc(1, sizeof(**handle));
    (*handle)->alive = 1;
    (*handle)->mode = (int)flags;
    live_devices++;
    return cudlaSuccess;
}

static int usable(cudlaDevHandle device) { return device && device->alive; }

static cudlaStatus enter(cudlaDevHandle device, uint64_t address, size_t size, void *sync,
                         uint64_t **const pointer)
{
    for (int i = 0; i < MAX_MEMORY; i++)
        if (memories[i].alive && memories[i].address == address && memories[i].device == device)
            return wrong(cudlaErrorMemoryRegistered, "memory registered twice");
    for (int i = 0; i < MAX_MEMORY; i++)
        if (!memories[i].alive) {
            memories[i] = (struct memory){1, device, address, size, sync};
            *pointer = (uint64_t *)&memories[i];
            live_memories++;
            return cudlaSuccess;
        }
    return cudlaErrorOutOfResources;
}

cudlaStatus cudlaMemRegister(cudlaDevHandle const device, const uint64_t *const ptr,
                             size_t const size, uint64_t **const pointer, uint32_t const flags)
{
    INJECT();
    if (!usable(device))
        return wrong(cudlaErrorInvalidDevice, "cudlaMemRegister: the device is closed");
    if (device->mode != CUDLA_CUDA_DLA)
        return wrong(cudlaErrorUnsupportedOperation, "cudlaMemRegister in standalone mode");
    if (!ptr || !size || ((uint64_t)ptr & 31) || flags)
        return wrong(cudlaErrorInvalidAddress, "cudlaMemRegister: bad address");
    return enter(device, (uint64_t)ptr, size, NULL, pointer);
}

cudlaStatus cudlaMemUnregister(cudlaDevHandle const device, const uint64_t *const pointer)
{
    INJECT();
    struct memory *item = (struct memory *)pointer;
    if (!usable(device))
        return wrong(cudlaErrorInvalidDevice, "cudlaMemUnregister: the device is closed");
    if (item < memories || item >= memories + MAX_MEMORY || !item->alive || item->device != device)
        return wrong(cudlaErrorInvalidAddress, "cudlaMemUnregister: not registered");
    item->alive = 0;
    live_memories--;
    return cudlaSuccess;
}

cudlaStatus cudlaModuleLoadFromMemory(cudlaDevHandle const device, const uint8_t *const blob,
                                      size_t const size, cudlaModule *const module,
                                      uint32_t const flags)
{
    INJECT();
    if (!usable(device) || flags)
        return wrong(cudlaErrorInvalidDevice, "cudlaModuleLoadFromMemory: bad device or flags");
    if (device->module)
        return wrong(cudlaErrorUnsupportedOperation, "a second loadable on one handle");
    uint32_t lengths[2];
    if (size < 16 || memcmp(blob + 4, "NVDA", 4))
        return cudlaErrorUmd;
    memcpy(lengths, blob + 8, 8);
    if (size != 16 + (size_t)lengths[0] + lengths[1])
        return cudlaErrorUmd;
    *module = calloc(1, sizeof(**module));
    (*module)->alive = 1;
    (*module)->device = device;
    device->module = *module;
    live_modules++;
    return cudlaSuccess;
}

cudlaStatus cudlaModuleGetAttributes(cudlaModule const module,
                                     cudlaModuleAttributeType const type,
                                     cudlaModuleAttribute *const attribute)
{
    INJECT();
    if (!module || !module->alive)
        return wrong(cudlaErrorInvalidModule, "cudlaModuleGetAttributes: no module");
    switch (type) {
    case CUDLA_NUM_INPUT_TENSORS:
        attribute->numInputTensors = program.num_inputs;
        return cudlaSuccess;
    case CUDLA_NUM_OUTPUT_TENSORS:
        attribute->numOutputTensors = program.num_outputs;
        return cudlaSuccess;
    case CUDLA_INPUT_TENSOR_DESCRIPTORS:
        memcpy(attribute->inputTensorDesc, program.inputs,
               program.num_inputs * sizeof(cudlaModuleTensorDescriptor));
        return cudlaSuccess;
    case CUDLA_OUTPUT_TENSOR_DESCRIPTORS:
        memcpy(attribute->outputTensorDesc, program.outputs,
               program.num_outputs * sizeof(cudlaModuleTensorDescriptor));
        return cudlaSuccess;
    default:
        return cudlaErrorInvalidAttribute;
    }
}

cudlaStatus cudlaModuleUnload(cudlaModule const module, uint32_t const flags)
{
    INJECT();
    if (!module || !module->alive || flags)
        return wrong(cudlaErrorInvalidModule, "cudlaModuleUnload: no module");
    module->alive = 0;
    live_modules--;
    return cudlaSuccess;
}

/* NvSciSync: an object with a counter that a task's end raises */
struct sync {
    int alive;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t count, promised;
};

static void *finish_later(void *argument)
{
    struct sync *sync = argument;
    struct timespec pause = {hang_ms / 1000, (hang_ms % 1000) * 1000000L};
    nanosleep(&pause, NULL);
    pthread_mutex_lock(&sync->mutex);
    sync->count++;
    pthread_cond_broadcast(&sync->changed);
    pthread_mutex_unlock(&sync->mutex);
    return NULL;
}

static cudlaStatus collect(cudlaDevHandle device, uint64_t *const *names, uint32_t count,
                           const cudlaModuleTensorDescriptor *descriptors, uint64_t *addresses)
{
    for (uint32_t i = 0; i < count; i++) {
        struct memory *item = (struct memory *)names[i];
        if (item < memories || item >= memories + MAX_MEMORY || !item->alive ||
            item->device != device)
            return wrong(cudlaErrorInvalidAddress, "cudlaSubmitTask: memory is not registered");
        if (item->size != descriptors[i].size)
            return wrong(cudlaErrorInvalidAddress, "cudlaSubmitTask: a buffer of the wrong size");
        addresses[i] = item->address;
    }
    return cudlaSuccess;
}

cudlaStatus cudlaSubmitTask(cudlaDevHandle const device, const cudlaTask *const tasks,
                            uint32_t const count, void *const stream, uint32_t const flags)
{
    INJECT();
    uint64_t inputs[MAX_TENSORS], outputs[MAX_TENSORS];
    if (!usable(device))
        return wrong(cudlaErrorInvalidDevice, "cudlaSubmitTask: the device is closed");
    if (count != 1 || flags)
        return wrong(cudlaErrorInvalidParam, "cudlaSubmitTask: count or flags");
    if (!tasks->moduleHandle || !tasks->moduleHandle->alive)
        return wrong(cudlaErrorInvalidModule, "cudlaSubmitTask: no module");
    if (tasks->numInputTensors != program.num_inputs ||
        tasks->numOutputTensors != program.num_outputs)
        return wrong(cudlaErrorInvalidParam, "cudlaSubmitTask: number of tensors");
    cudlaStatus status = collect(device, (uint64_t *const *)tasks->inputTensor,
                                 program.num_inputs, program.inputs, inputs);
    if (status == cudlaSuccess)
        status = collect(device, tasks->outputTensor, program.num_outputs, program.outputs,
                         outputs);
    if (status != cudlaSuccess)
        return status;
    if (device->mode == CUDLA_CUDA_DLA) {
        if (!stream || tasks->waitEvents || tasks->signalEvents)
            return wrong(cudlaErrorUnsupportedOperation, "hybrid: a stream and no events");
        return compute(0, inputs, outputs, stream) ? cudlaErrorCuda : cudlaSuccess;
    }
    if (stream || !tasks->signalEvents || tasks->signalEvents->numEvents != 1)
        return wrong(cudlaErrorInvalidParam, "standalone: no stream and one signal event");
    struct memory *name = (struct memory *)tasks->signalEvents->devPtrs[0];
    const CudlaFence *fence = tasks->signalEvents->eofFences;
    if (!name->alive || !name->sync || fence->type != CUDLA_NVSCISYNC_FENCE)
        return wrong(cudlaErrorInvalidAddress, "standalone: no semaphore");
    uint64_t *payload = fence->fence;
    if (payload[0] || payload[1])
        return wrong(cudlaErrorNvSci, "standalone: the fence was not cleared");
    struct sync *sync = name->sync;
    payload[0] = (uint64_t)sync;
    payload[1] = ++sync->promised;
    live_sci++;
    if (compute(0, inputs, outputs, NULL))
        device->last_error = cudlaErrorDlaErrInvalidInput;
    if (hang_ms > (int)timeout_ms) {
        hang_ms = (int)timeout_ms;
        device->last_error = cudlaErrorDlaErrEngineTimeout;
    }
    pthread_t thread;
    pthread_create(&thread, NULL, finish_later, sync);
    pthread_detach(thread);
    return cudlaSuccess;
}

cudlaStatus cudlaDeviceGetAttribute(cudlaDevHandle const device,
                                    cudlaDevAttributeType const type,
                                    cudlaDevAttribute *const attribute)
{
    INJECT();
    (void)device;
    if (type == CUDLA_UNIFIED_ADDRESSING)
        attribute->unifiedAddressingSupported = 1;
    else
        attribute->deviceVersion = 2;
    return cudlaSuccess;
}

cudlaStatus cudlaGetLastError(cudlaDevHandle const device)
{
    INJECT();
    if (!usable(device))
        return wrong(cudlaErrorInvalidDevice, "cudlaGetLastError: the device is closed");
    cudlaStatus status = (cudlaStatus)device->last_error;
    device->last_error = 0;
    return status;
}

cudlaStatus cudlaDestroyDevice(cudlaDevHandle const device)
{
    INJECT();
    if (!usable(device))
        return wrong(cudlaErrorInvalidDevice, "cudlaDestroyDevice: closed already");
    if (device->module && device->module->alive)
        wrong(cudlaSuccess, "cudlaDestroyDevice: a loadable is still loaded");
    for (int i = 0; i < MAX_MEMORY; i++)
        if (memories[i].alive && memories[i].device == device)
            wrong(cudlaSuccess, "cudlaDestroyDevice: memory is still registered");
    device->alive = 0;
    live_devices--;
    return cudlaSuccess;
}

/* NvSciBuf */
struct list {
    int magic, reconciled;
    uint64_t size, align;
    bool cpu_access, cpu_cache;
    int type, permission;
    int dla, cpu_waits;
    bool flush;
};
struct buffer {
    int alive;
    void *bytes;
    uint64_t size;
};
typedef struct {
    int key;
    const void *value;
    size_t len;
} pair;

enum { BUF_LIST = 0xb1, SYNC_LIST = 0x51 };

static bool flush_needed;
static int flushes;
static int sync_major = 2;

void stand_in_caches(bool needed) { flush_needed = needed; }
void stand_in_sync_version(int major) { sync_major = major; }
int stand_in_flushes(void) { return flushes; }

#define SCI_INJECT()                          \
    do {                                      \
        int status = injected(__func__);      \
        if (status)                           \
            return status;                    \
    } while (0)

int NvSciBufModuleOpen(void **module)
{
    SCI_INJECT();
    *module = malloc(1);
    live_sci++;
    return 0;
}

void NvSciBufModuleClose(void *module)
{
    free(module);
    live_sci--;
}

static int make_list(void *module, void **list, int magic)
{
    struct list *made = calloc(1, sizeof(*made));
    if (!module)
        return 0x100;
    made->magic = magic;
    *list = made;
    live_sci++;
    return 0;
}

int NvSciBufAttrListCreate(void *module, void **list)
{
    SCI_INJECT();
    return make_list(module, list, BUF_LIST);
}

void NvSciBufAttrListFree(void *list)
{
    free(list);
    live_sci--;
}

int NvSciBufAttrListSetAttrs(void *opaque, const pair *pairs, size_t count)
{
    SCI_INJECT();
    struct list *list = opaque;
    for (size_t i = 0; i < count; i++) {
        const void *value = pairs[i].value;
        size_t length = pairs[i].len;
        switch (pairs[i].key) {
        case 1: list->type = *(const int *)value; if (length != 4) return 0x100; break;
        case 2: list->cpu_access = *(const bool *)value; if (length != 1) return 0x100; break;
        case 3: list->permission = *(const int *)value; if (length != 4) return 0x100; break;
        case 4: list->cpu_cache = *(const bool *)value; if (length != 1) return 0x100; break;
        case 0x10000: list->size = *(const uint64_t *)value; if (length != 8) return 0x100; break;
        case 0x10001: list->align = *(const uint64_t *)value; if (length != 8) return 0x100; break;
        default: return 0x100;
        }
    }
    return 0;
}

int NvSciBufAttrListReconcile(void *const *lists, size_t count, void **merged, void **conflicts)
{
    SCI_INJECT();
    struct list *list = lists[0];
    if (count != 1 || list->magic != BUF_LIST || list->type != 1 || !list->size ||
        list->permission != 3 || !list->cpu_access)
        return 0x2200;
    struct list *made = malloc(sizeof(*made));
    *made = *list;
    made->reconciled = 1;
    made->flush = flush_needed;
    *merged = made;
    *conflicts = NULL;
    live_sci++;
    return 0;
}

int NvSciBufAttrListGetAttrs(void *opaque, pair *pairs, size_t count)
{
    SCI_INJECT();
    struct list *list = opaque;
    if (count != 1 || pairs[0].key != 6 || !list->reconciled)
        return 0x100;
    pairs[0].value = &list->flush;
    pairs[0].len = 1;
    return 0;
}

int NvSciBufObjAlloc(void *opaque, void **object)
{
    SCI_INJECT();
    struct list *list = opaque;
    if (!list->reconciled)
        return 0x100;
    struct buffer *made = malloc(sizeof(*made));
    made->alive = 1;
    made->size = list->size;
    made->bytes = aligned_alloc(list->align, (list->size + list->align - 1) / list->align * list->align);
    memset(made->bytes, 0xAA, list->size);
    *object = made;
    live_sci++;
    return 0;
}

void NvSciBufObjFree(void *object)
{
    struct buffer *buffer = object;
    for (int i = 0; i < MAX_MEMORY; i++)
        if (memories[i].alive && memories[i].address == (uint64_t)buffer->bytes)
            wrong(cudlaSuccess, "NvSciBufObjFree: the DLA still uses it");
    /* the bytes stay, so that a view on them is wrong but does not crash the test */
    memset(buffer->bytes, 0xDD, buffer->size);
    buffer->alive = 0;
    live_sci--;
}

int NvSciBufObjGetCpuPtr(void *object, void **pointer)
{
    SCI_INJECT();
    *pointer = ((struct buffer *)object)->bytes;
    return 0;
}

int NvSciBufObjFlushCpuCacheRange(void *object, uint64_t offset, uint64_t length)
{
    SCI_INJECT();
    if (offset || length != ((struct buffer *)object)->size)
        return 0x100;
    flushes++;
    return 0;
}

cudlaStatus cudlaImportExternalMemory(cudlaDevHandle const device,
                                      const cudlaExternalMemoryHandleDesc *const description,
                                      uint64_t **const pointer, uint32_t const flags)
{
    INJECT();
    if (!usable(device) || device->mode != CUDLA_STANDALONE || flags)
        return wrong(cudlaErrorUnsupportedOperation, "cudlaImportExternalMemory: mode");
    const struct buffer *buffer = description->extBufObject;
    if (description->size != buffer->size)
        return wrong(cudlaErrorInvalidParam, "cudlaImportExternalMemory: size");
    return enter(device, (uint64_t)buffer->bytes, buffer->size, NULL, pointer);
}

cudlaStatus cudlaImportExternalSemaphore(cudlaDevHandle const device,
                                         const cudlaExternalSemaphoreHandleDesc *const description,
                                         uint64_t **const pointer, uint32_t const flags)
{
    INJECT();
    if (!usable(device) || device->mode != CUDLA_STANDALONE || flags)
        return wrong(cudlaErrorUnsupportedOperation, "cudlaImportExternalSemaphore: mode");
    return enter(device, (uint64_t)description->extSyncObject, 1,
                 (void *)description->extSyncObject, pointer);
}

cudlaStatus cudlaGetNvSciSyncAttributes(uint64_t *list, uint32_t const flags)
{
    INJECT();
    struct list *attributes = (struct list *)list;
    if (attributes->magic != SYNC_LIST || flags != CUDLA_NVSCISYNC_ATTR_SIGNAL)
        return wrong(cudlaErrorInvalidAttribute, "cudlaGetNvSciSyncAttributes");
    attributes->dla = 1;
    return cudlaSuccess;
}

#ifndef WITHOUT_TASK_TIMEOUT
cudlaStatus cudlaSetTaskTimeoutInMs(cudlaDevHandle const device, uint32_t const milliseconds)
{
    INJECT();
    if (!usable(device) || milliseconds == 0 || milliseconds > 1000000)
        return wrong(cudlaErrorInvalidParam, "cudlaSetTaskTimeoutInMs");
    timeout_ms = milliseconds;
    return cudlaSuccess;
}
#endif

/* NvSciSync */
int NvSciSyncCheckVersionCompatibility(uint32_t major, uint32_t minor, bool *fits)
{
    SCI_INJECT();
    *fits = (int)major == sync_major && minor <= 4;
    return 0;
}

int NvSciSyncModuleOpen(void **module)
{
    SCI_INJECT();
    *module = malloc(1);
    live_sci++;
    return 0;
}

void NvSciSyncModuleClose(void *module)
{
    free(module);
    live_sci--;
}

int NvSciSyncAttrListCreate(void *module, void **list)
{
    SCI_INJECT();
    return make_list(module, list, SYNC_LIST);
}

void NvSciSyncAttrListFree(void *list)
{
    free(list);
    live_sci--;
}

int NvSciSyncAttrListSetAttrs(void *opaque, const pair *pairs, size_t count)
{
    SCI_INJECT();
    struct list *list = opaque;
    for (size_t i = 0; i < count; i++) {
        if (pairs[i].key == 1 && pairs[i].len == 1 && *(const bool *)pairs[i].value)
            list->cpu_waits |= 1;
        else if (pairs[i].key == 2 && pairs[i].len == 8 && *(const uint64_t *)pairs[i].value == 1)
            list->cpu_waits |= 2;
        else
            return 0x100;
    }
    return 0;
}

int NvSciSyncAttrListReconcile(void *const *lists, size_t count, void **merged, void **conflicts)
{
    SCI_INJECT();
    struct list *signaller = lists[0], *waiter = lists[1];
    if (count != 2 || !signaller->dla || waiter->cpu_waits != 3) {
        *merged = NULL;
        return make_list(lists[0], conflicts, SYNC_LIST) ? 0x100 : 0x2200;
    }
    *conflicts = NULL;
    int status = make_list(lists[0], merged, SYNC_LIST);
    ((struct list *)*merged)->reconciled = 1;
    return status;
}

int NvSciSyncObjAlloc(void *list, void **object)
{
    SCI_INJECT();
    if (!((struct list *)list)->reconciled)
        return 0x100;
    struct sync *made = calloc(1, sizeof(*made));
    pthread_mutex_init(&made->mutex, NULL);
    pthread_cond_init(&made->changed, NULL);
    made->alive = 1;
    *object = made;
    live_sci++;
    return 0;
}

void NvSciSyncObjFree(void *object)
{
    ((struct sync *)object)->alive = 0;
    live_sci--;
}

int NvSciSyncCpuWaitContextAlloc(void *module, void **context)
{
    SCI_INJECT();
    (void)module;
    *context = malloc(1);
    live_sci++;
    return 0;
}

void NvSciSyncCpuWaitContextFree(void *context)
{
    free(context);
    live_sci--;
}

int NvSciSyncFenceWait(const uint64_t *fence, void *context, int64_t microseconds)
{
    SCI_INJECT();
    struct sync *sync = (struct sync *)fence[0];
    struct timespec until;
    int late = 0;
    if (!context)
        return 0x100;
    if (!sync)
        return 0; /* a cleared fence has passed */
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += microseconds / 1000000;
    until.tv_nsec += microseconds % 1000000 * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&sync->mutex);
    while (sync->count < fence[1] && !late)
        if (microseconds < 0)
            pthread_cond_wait(&sync->changed, &sync->mutex);
        else
            late = pthread_cond_timedwait(&sync->changed, &sync->mutex, &until) != 0;
    pthread_mutex_unlock(&sync->mutex);
    return late ? 0x200 : 0;
}

void NvSciSyncFenceClear(uint64_t *fence)
{
    if (fence[0])
        live_sci--;
    memset(fence, 0, 48);
}
