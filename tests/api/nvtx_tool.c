// SPDX-License-Identifier: Apache-2.0
// A tool of NVTX, as NVIDIA's header describes one. It writes down the ranges of the process.
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtMem.h>
#include <stdio.h>
#include <string.h>

// "name bytes(" for the begin of a range, ")" for the end; of memory "allocation bytes{", "block bytes[", "]" and "}".
// The test clears it.
char nvtx_tool_seen[4096];
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);
int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *module);

static int see(const char *form, const char *name, unsigned long long bytes) {
  const size_t used = strlen(nvtx_tool_seen);
  return snprintf(nvtx_tool_seen + used, sizeof nvtx_tool_seen - used, form, name, bytes);
}

static int push(const nvtxEventAttributes_t *event) {
  if (event->version != NVTX_VERSION || event->size != NVTX_EVENT_ATTRIB_STRUCT_SIZE ||
      event->messageType != NVTX_MESSAGE_TYPE_ASCII || event->payloadType != NVTX_PAYLOAD_TYPE_UNSIGNED_INT64)
    return -1;
  return see("%s %llu(", event->message.ascii, event->payload.ullValue);
}

static int pop(void) {
  strcat(nvtx_tool_seen, ")");
  return 0;
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
  const NvtxExportTableVersionInfo *version = get_table(NVTX_ETID_VERSIONINFO);
  NvtxFunctionTable table = NULL;
  unsigned count = 0;
  if (version->version != NVTX_VERSION || get_table(NVTX_ETID_INVALID) != NULL) return 0;
  for (int module = NVTX_CB_MODULE_SIZE - 1; module >= NVTX_CB_MODULE_CORE; --module) {
    if (!callbacks->GetModuleFunctionTable((NvtxCallbackModule)module, &table, &count)) return 0;
    for (unsigned i = 1; i < count; ++i) *table[i] = NULL;
  }
  if (count < NVTX_CBID_CORE_SIZE) return 0;
  *table[NVTX_CBID_CORE_RangePushEx] = (NvtxFunctionPointer)push;
  *table[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
  return 1;
}

// --- The memory extension ---

static nvtxMemHeapHandle_t begin_heap(nvtxDomainHandle_t domain, const nvtxMemHeapDesc_t *desc) {
  const nvtxMemVirtualRangeDesc_t *range = desc->typeSpecificDesc;
  if (domain != NULL || desc->extCompatID != NVTX_EXT_COMPATID_MEM || desc->structSize != sizeof *desc ||
      desc->usage != NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR || desc->type != NVTX_MEM_TYPE_VIRTUAL_ADDRESS)
    return NULL;
  see("%s %llu{", "allocation", range->size);
  return (nvtxMemHeapHandle_t)range->ptr;
}

static void end_heap(nvtxDomainHandle_t domain, nvtxMemHeapHandle_t heap) {
  if (domain == NULL && heap != NULL) strcat(nvtx_tool_seen, "}");
}

static void begin_regions(nvtxDomainHandle_t domain, const nvtxMemRegionsRegisterBatch_t *batch) {
  const nvtxMemVirtualRangeDesc_t *range = batch->regionDescElements;
  if (domain == NULL && batch->structSize == sizeof *batch && batch->regionCount == 1 &&
      batch->regionDescElementSize == sizeof *range && (const char *)range->ptr >= (const char *)batch->heap)
    see("%s %llu[", "block", range->size);
}

static void end_regions(nvtxDomainHandle_t domain, const nvtxMemRegionsUnregisterBatch_t *batch) {
  if (domain == NULL && batch->structSize == sizeof *batch && batch->refType == NVTX_MEM_REGION_REF_TYPE_POINTER &&
      batch->refElements[0].pointer != NULL)
    strcat(nvtx_tool_seen, "]");
}

int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *module) {
  if (module->moduleId != NVTX_EXT_MODULEID_MEM || module->compatId != NVTX_EXT_COMPATID_MEM ||
      module->structSize != sizeof *module || module->segmentsCount != 1)
    return 0;
  intptr_t *slots = module->segments[0].functionSlots;
  slots[NVTX3EXT_CBID_nvtxMemHeapRegister] = (intptr_t)begin_heap;
  slots[NVTX3EXT_CBID_nvtxMemHeapUnregister] = (intptr_t)end_heap;
  slots[NVTX3EXT_CBID_nvtxMemRegionsRegister] = (intptr_t)begin_regions;
  slots[NVTX3EXT_CBID_nvtxMemRegionsUnregister] = (intptr_t)end_regions;
  return 1;
}
