/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;
using System.Diagnostics;
using Gmm;

/// <summary>gmm in a second application domain, which is unloaded afterwards.</summary>
internal sealed class Domains : MarshalByRefObject
{
    private static readonly List<object> left = new List<object>();

    /// <summary>In the second domain: leaves memory and callbacks behind.</summary>
    internal string Use()
    {
        try
        {
            GmmContext context = new GmmContext(new GmmContextOptions { Logger = (level, message) => { } });
            GmmBuffer buffer = context.Alloc(4096);
            buffer.Fill(1);
            left.Add(buffer);
            context.Alloc(4096);
            GmmLease lease = context.Lease(new GmmLeaseOptions
            {
                Name = "left", Asked = (asked, ask) => { }
            });
            lease.Request();
            left.Add(lease);
            return "used";
        }
        catch (InvalidOperationException error)
        {
            return error.Message;
        }
    }

    private static string UseOnce()
    {
        AppDomain domain = AppDomain.CreateDomain("second");
        Type type = typeof(Domains);
        Domains there = (Domains)domain.CreateInstanceFromAndUnwrap(type.Assembly.Location, type.FullName);
        string said = there.Use();
        AppDomain.Unload(domain);
        return said;
    }

    internal static void Run()
    {
        for (int i = 0; i < 2; i++)
        {
            Tap.Same("used", UseOnce(), "a second domain, while the first has not used gmm");
        }
        int lines = 0;
        using (GmmContext context = new GmmContext(new GmmContextOptions { Logger = (level, message) => lines++ }))
        {
            Tap.Check(lines > 0, "the first domain hears its own log");
            string said = UseOnce();
            Tap.Check(said.Contains("another application domain"), "a domain beside it is refused: " + said);
            Tap.Fails(GmmResult.InvalidSize, "INVALID_SIZE", () => context.Alloc(0));
            context.Alloc(100).Dispose();
        }
    }
}
