/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import static io.gmm.SmokeTest.need;
import static io.gmm.SmokeTest.pattern;
import static io.gmm.SmokeTest.sameBytes;
import static io.gmm.Tap.check;
import static io.gmm.Tap.fails;
import static io.gmm.Tap.same;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;

/** The steps of tests/bindings/SMOKE.md about sharing with other processes. */
final class IpcTest {
    private static final int MIB = 1 << 20;

    private final Context context;
    private final DeviceInfo device;

    IpcTest(Context context, DeviceInfo device) {
        this.context = context;
        this.device = device;
    }

    void memory(Kind kind) throws Exception {
        try (GmmBuffer buffer = context.alloc(MIB, kind)) {
            PointerInfo info = buffer.query();
            need(info.legacyIpc() || info.fdIpc(), "IPC for " + kind);
            int inside = 4096;
            for (int offset : new int[] {0, inside}) {
                byte[] before = pattern(MIB - offset);
                buffer.write(offset, before);
                byte[] handle = offset == 0 ? buffer.exportHandle() : context.exportHandle(buffer.address() + offset);
                Child.run(handle, "import", Integer.toString(MIB - offset));
                for (int i = 0; i < before.length; i++) {
                    before[i] = (byte) ~before[i];
                }
                sameBytes(before, buffer.read(offset, MIB - offset), "what the second process wrote");
            }
        }
    }

    void garbage() throws Exception {
        fails(Result.IPC_INVALID_HANDLE, () -> context.importMemory(pattern(Context.IPC_HANDLE_SIZE)));
        fails(Result.IPC_INVALID_HANDLE, () -> context.importMemory(new byte[Context.IPC_HANDLE_SIZE]));
        fails(IllegalArgumentException.class, () -> context.importMemory(new byte[10]));
        fails(IllegalArgumentException.class, () -> context.importMemory(null));
    }

    void fd() throws Exception {
        need(device.canExportFd(), "file descriptors of memory");
        try (Heap heap = context.heap(new HeapOptions().kind(Kind.VMM).exportable());
             GmmBuffer pooled = heap.alloc(64 * MIB);
             ExportedFd out = pooled.exportFd()) {
            check(out.size() >= out.offset() + 64 * MIB, "one allocation holds the pooled block");
        }
        try (GmmBuffer buffer = context.alloc(MIB, new AllocOptions().kind(Kind.VMM).dedicated())) {
            ExportedFd exported = buffer.exportFd();
            Path path = Paths.get("/proc/self/fd/" + exported.fd());
            Path memory = Files.readSymbolicLink(path);
            check(exported.size() >= exported.offset() + MIB, "the allocation holds the block");
            try (GmmBuffer again = context.importFd(
                     exported.fd(), device.isCpu() ? FdType.FILE : FdType.OPAQUE, exported.size(), 0)) {
                same(exported.size(), again.size(), "the size of the import");
                check(again.address() != buffer.address(), "a mapping of its own");
                buffer.write(0, pattern(MIB));
                sameBytes(pattern(MIB), again.read(exported.offset(), MIB), "what the block holds, through the import");
                again.write(exported.offset() + 5, new byte[] {99});
                same((byte) 99, buffer.read(5, 1)[0], "a byte that was written through the import");
            }
            exported.close();
            exported.close();
            // Threads of the virtual machine may have opened something else under the number meanwhile.
            try {
                check(!memory.equals(Files.readSymbolicLink(path)), "the descriptor is closed");
            } catch (java.nio.file.NoSuchFileException closed) {
                // as it should be
            }
            fails(IllegalStateException.class, exported::fd);
        }
    }

    void event() throws Exception {
        boolean[] flag = new boolean[1];
        try (Stream first = context.stream(0); Stream second = context.stream(0); Event event = context.ipcEvent(0);
             Event plain = context.event(0)) {
            first.call(() -> {
                try {
                    Thread.sleep(50);
                } catch (InterruptedException error) {
                    throw new IllegalStateException(error);
                }
                flag[0] = true;
            });
            event.record(first);
            try (Event imported = context.importEvent(event.exportHandle(), 0, 0)) {
                second.waitFor(imported);
                second.synchronize();
                check(flag[0], "the second stream waited for the first");
                imported.synchronize();
                check(imported.query(), "the event has passed");
            }
            fails(Result.INVALID_HANDLE, plain::exportHandle);
            fails(Result.IPC_INVALID_HANDLE, () -> context.importEvent(new byte[Context.IPC_HANDLE_SIZE], 0, 0));
        }
        fails(Result.BUSY, () -> context.configureIpc(new IpcOptions().directory(Paths.get("/tmp"))));
        try (Context other = Context.open(new ContextOptions().backend(Backend.HOST))) {
            fails(Result.INVALID_VALUE, () -> other.configureIpc(new IpcOptions().user(1)));
            other.configureIpc(new IpcOptions());
        }
    }

    void legacy() throws Exception {
        try (GmmBuffer buffer = context.alloc(MIB, Kind.DEVICE)) {
            if (buffer.query().legacyIpc()) {
                LegacyHandle handle = buffer.exportLegacy();
                same(LegacyHandle.SIZE, handle.bytes().length, "bytes of the handle");
                check(handle.size() >= handle.offset() + MIB, "the allocation holds the block");
            } else {
                fails(Result.NOT_SUPPORTED, buffer::exportLegacy);
            }
        }
    }
}
