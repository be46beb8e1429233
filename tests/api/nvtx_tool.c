// SPDX-License-Identifier: Apache-2.0
// A tool of NVTX, as NVIDIA's header describes one. It writes down the ranges of the process.
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <string.h>

// "name bytes(" for the begin of a range, ")" for the end. The test clears it.
char nvtx_tool_seen[4096];
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);

static int push(const nvtxEventAttributes_t *event) {
  const size_t used = strlen(nvtx_tool_seen);
  if (event->version != NVTX_VERSION || event->size != NVTX_EVENT_ATTRIB_STRUCT_SIZE ||
      event->messageType != NVTX_MESSAGE_TYPE_ASCII || event->payloadType != NVTX_PAYLOAD_TYPE_UNSIGNED_INT64)
    return -1;
  return snprintf(nvtx_tool_seen + used, sizeof nvtx_tool_seen - used, "%s %llu(", event->message.ascii,
                  (unsigned long long)event->payload.ullValue);
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
