/* SPDX-License-Identifier: Apache-2.0 */
package io.gmm;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Locale;

/**
 * Finds and loads the native libraries: from the directory that the system property gmm.library.path names, else from
 * the jar, through a private temporary directory, which it deletes while this class is loaded. The jar of an installed
 * system has none; they lie on java.library.path then.
 */
@SuppressWarnings("restricted") // System.load() in JDK 24 and newer
final class Library {
    private static final String WRAPPER = "libgmm_java.so";

    private Library() {}

    /** Called once, by the static initialiser of the generated JNI class. */
    static void load() {
        String path = System.getProperty("gmm.library.path");
        String folder = "/META-INF/native/" + platform() + "/";
        if (path != null) {
            System.load(Paths.get(path, WRAPPER).toAbsolutePath().toString());
        } else if (Library.class.getResource(folder + "libraries") == null) {
            loadFromSystem();
        } else {
            try {
                loadFromJar(folder);
            } catch (IOException error) {
                throw failure("gmm's native libraries could not be unpacked from " + folder + ": " + error
                    + "; set -Djava.io.tmpdir to a directory that allows executables, or -Dgmm.library.path to one "
                    + "with " + WRAPPER, error);
            }
        }
    }

    private static UnsatisfiedLinkError failure(String message, Throwable cause) {
        UnsatisfiedLinkError failure = new UnsatisfiedLinkError(message);
        failure.initCause(cause);
        return failure;
    }

    private static void loadFromJar(String folder) throws IOException {
        String names;
        try (InputStream list = Library.class.getResourceAsStream(folder + "libraries")) {
            names = new String(list.readAllBytes(), StandardCharsets.UTF_8);
        }
        // Only the owner may enter: createTempDirectory gives mode 0700.
        Path directory = Files.createTempDirectory("gmm-java-");
        try {
            // In the order of the list: a library's needs are met by those before it, found by their soname.
            for (String name : names.split("\n")) {
                Path file = directory.resolve(name);
                try (InputStream content = Library.class.getResourceAsStream(folder + name)) {
                    Files.copy(content, file);
                }
                System.load(file.toString());
            }
        } finally {
            // A loaded library stays mapped without its file, so that nothing is left behind, whatever happens later.
            for (String name : names.split("\n")) {
                Files.deleteIfExists(directory.resolve(name));
            }
            Files.deleteIfExists(directory);
        }
    }

    private static void loadFromSystem() {
        try {
            System.loadLibrary("gmm_java");
        } catch (UnsatisfiedLinkError error) {
            throw failure("this jar holds no native library of gmm for " + platform()
                + "; set -Dgmm.library.path to a directory with " + WRAPPER + " (" + error.getMessage() + ")", error);
        }
    }

    private static String platform() {
        String system = System.getProperty("os.name").toLowerCase(Locale.ROOT);
        String machine = System.getProperty("os.arch").toLowerCase(Locale.ROOT).replace("amd64", "x86_64");
        return (system.startsWith("linux") ? "linux" : system.replace(' ', '_')) + "-" + machine;
    }
}
