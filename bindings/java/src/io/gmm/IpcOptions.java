/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** Who may share with a context, and where its socket stands; see {@link Context#configureIpc}. */
public final class IpcOptions {
    private Path directory;
    private final List<Integer> users = new ArrayList<>();

    /** The directory of the socket. Not set: $GMM_IPC_DIR, else $XDG_RUNTIME_DIR/gmm, else /tmp/gmm-&lt;uid&gt;. */
    public IpcOptions directory(Path directory) {
        this.directory = directory;
        return this;
    }

    /** A further user id that may import from this context and that it imports from. Needs a directory. */
    public IpcOptions user(int user) {
        users.add(user);
        return this;
    }

    gmm_ipc_config toNative() {
        gmm_ipc_config config = new gmm_ipc_config();
        if (directory != null) {
            config.set_directory(directory.toString());
        }
        for (int user : users) {
            config.add_user(user);
        }
        return config;
    }
}
