/* SPDX-License-Identifier: Apache-2.0 */
internal static class Program
{
    private static int Main(string[] arguments)
    {
        switch (arguments[0])
        {
            case "calls":
                return CallsTest.Run();
            case "callbacks":
                return CallbackTest.Run();
            case "lifecycle":
                return LifecycleTest.Run();
            case "lease":
                return LeaseTest.Run();
            default:
                return Child.Go(arguments[1]);
        }
    }
}
