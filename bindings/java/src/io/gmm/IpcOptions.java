/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** The users who may share with a context, and its socket's directory; see {@link Context#configureIpc}. */
public final class IpcOptions {
    private Path directory;
    private final List<Integer> users = new ArrayList<>();

    /** The directory of the socket; by default $GMM_IPC_DIR, else $XDG_RUNTIME_DIR/gmm, else /tmp/gmm-&lt;uid&gt;. */
    public IpcOptions directory(Path directory) {
        this.directory = directory;
        return this;
    }

    /** Names a further user, who may import from this context, and from whom it imports. That needs a directory. */
    public IpcOptions user(int user) {
        users.add(user);
        return this;
    }

    gmm_ipc_desc toNative() {
        gmm_ipc_desc config = new gmm_ipc_desc();
        if (directory != null) {
            config.set_directory(directory.toString());
        }
        for (int user : users) {
            config.add_user(user);
        }
        return config;
    }

    @Override
    public String toString() {
        return Text.describe(this);
    }
}
