#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# find_jdk.sh VERSION HOME: prints the folder of a JDK of VERSION or newer, or nothing. HOME is asked first.
wanted=$1
shift
for home in "$@" "$JAVA_HOME" /usr/lib/jvm/*; do
  [ -x "$home/bin/javac" ] && [ -x "$home/bin/jar" ] && [ -x "$home/bin/java" ] || continue
  # "javac 25.0.1" or "javac 23-ea"
  found=$("$home/bin/javac" -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p')
  if [ -n "$found" ] && [ "$found" -ge "$wanted" ]; then
    echo "$home"
    exit 0
  fi
done
