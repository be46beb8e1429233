/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;

internal static class Program
{
    private static readonly Dictionary<string, Func<int>> programs = new Dictionary<string, Func<int>>
    {
        ["calls"] = CallsTest.Run, ["callbacks"] = CallbackTest.Run, ["lifecycle"] = LifecycleTest.Run,
        ["lease"] = LeaseTest.Run, ["exit"] = Child.ExitWithLiveBuffers, ["exit-inside"] = Child.ExitInsideCallbacks,
        ["task-throws"] = Child.TaskThrows
    };

    private static int Main(string[] arguments) => programs[arguments[0]]();
}
