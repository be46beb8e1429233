/* SPDX-License-Identifier: Apache-2.0 */
using System;

internal static class Program
{
    private static int Main(string[] arguments)
    {
        switch (arguments.Length == 0 ? "" : arguments[0])
        {
            case "calls":
                return CallsTest.Run();
            case "callbacks":
                return CallbackTest.Run();
            case "lifecycle":
                return LifecycleTest.Run();
            case "lease":
                return LeaseTest.Run();
            case "child":
                string[] rest = new string[arguments.Length - 1];
                Array.Copy(arguments, 1, rest, 0, rest.Length);
                return Child.Go(rest);
            default:
                Console.Error.WriteLine("usage: tests.exe calls | callbacks | lifecycle | lease");
                return 2;
        }
    }
}
