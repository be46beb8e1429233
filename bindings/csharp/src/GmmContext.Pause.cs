/* SPDX-License-Identifier: Apache-2.0 */
using System;
using System.Collections.Generic;
using System.Linq;

namespace Gmm
{
    // Tags, pause and resume.
    public sealed partial class GmmContext
    {
        /// <summary>Makes a tag whose contents are dropped by a pause, or finds the tag of that name.</summary>
        public GmmTag Tag(string name)
        {
            using (Use context = new Use(handle))
            {
                uint tag;
                Native.gmm_tag_create(context.Address, name, null, out tag);
                return new GmmTag(this, tag);
            }
        }

        /// <summary>
        /// Makes a tag, or finds it; contents and priority must then agree with it. Higher priorities resume first.
        /// </summary>
        public GmmTag Tag(string name, GmmContents contents, int priority)
        {
            return Tag(name, new GmmTagOptions { Contents = contents, Priority = priority });
        }

        /// <summary>Makes a tag, or finds it; the options must then agree with it.</summary>
        public GmmTag Tag(string name, GmmTagOptions options)
        {
            using (Use context = new Use(handle))
            {
                uint tag;
                Native.gmm_tag_create(context.Address, name, options.Encode(), out tag);
                return new GmmTag(this, tag);
            }
        }

        /// <summary>The tag of that name. Fails with InvalidTag when there is none.</summary>
        public GmmTag FindTag(string name)
        {
            using (Use context = new Use(handle))
            {
                uint tag;
                Native.gmm_tag_find(context.Address, name, out tag);
                return new GmmTag(this, tag);
            }
        }

        /// <summary>The tag with this number, as <see cref="GmmPointerInfo.Tag"/> gives it.</summary>
        public GmmTag TagByNumber(int number)
        {
            return new GmmTag(this, (uint)number);
        }

        /// <summary>
        /// The tags of the context in the order of their making. The first is <see cref="DefaultTag"/>.
        /// </summary>
        public IReadOnlyList<GmmTag> Tags()
        {
            using (Use context = new Use(handle))
            {
                uint count = 0;
                uint[] numbers;
                do // other threads may make tags between two calls
                {
                    numbers = new uint[count + 8];
                    Native.gmm_tag_list(context.Address, numbers, (uint)numbers.Length, out count);
                }
                while (count > numbers.Length);
                return numbers.Take((int)count).Select(number => new GmmTag(this, number)).ToList();
            }
        }

        /// <summary>The tag of memory that nobody tagged.</summary>
        public GmmTag DefaultTag
        {
            get { return new GmmTag(this, 1); }
        }

        /// <summary>Sets the current tag of every thread that has pushed none.</summary>
        public void SetProcessDefaultTag(GmmTag tag)
        {
            using (Use context = new Use(handle))
            {
                Native.gmm_tag_set_default(context.Address, (uint)tag.Number);
            }
        }

        internal void PushTag(int tag)
        {
            using (Use context = new Use(handle))
            {
                Native.gmm_tag_push(context.Address, (uint)tag);
            }
        }

        internal void PopTag()
        {
            using (Use context = new Use(handle))
            {
                Native.gmm_tag_pop(context.Address);
            }
        }

        internal GmmPauseInfo PauseInfo(int tag)
        {
            using (Use context = new Use(handle))
            {
                byte[] info = GmmPauseInfo.BytesForC();
                Native.gmm_tag_query(context.Address, (uint)tag, info);
                return new GmmPauseInfo(info);
            }
        }

        /// <summary>
        /// Gives the physical memory of the tags' VMM blocks back to the driver and keeps every address. The pause is
        /// all or nothing. Without tags it covers every tag. Until the resume, no thread or kernel may use the memory
        /// or a span of it. Returns the bytes that went back, 0 when nothing was active.
        /// </summary>
        public long Pause(params GmmTag[] tags)
        {
            return Pause(new GmmPauseOptions(), tags);
        }

        /// <summary>Pauses as Pause() does, with options.</summary>
        public long Pause(GmmPauseOptions options, params GmmTag[] tags)
        {
            return PauseOrResume(true, options, tags);
        }

        /// <summary>
        /// Pauses as Pause() does, also when importers hold the memory. They keep the old pages, and this process gets
        /// new ones.
        /// </summary>
        public long PauseForced(params GmmTag[] tags)
        {
            return Pause(new GmmPauseOptions { Force = true }, tags);
        }

        /// <summary>
        /// Gives paused memory its pages back at the same addresses, with the contents where the tag keeps them.
        /// Without tags it covers every tag. Returns the bytes taken from the driver.
        /// </summary>
        public long Resume(params GmmTag[] tags)
        {
            return Resume(new GmmPauseOptions(), tags);
        }

        /// <summary>Resumes as Resume() does, and reports the progress.</summary>
        public long Resume(GmmProgress progress, params GmmTag[] tags)
        {
            return Resume(new GmmPauseOptions { Progress = progress }, tags);
        }

        /// <summary>Resumes as Resume() does, with options.</summary>
        public long Resume(GmmPauseOptions options, params GmmTag[] tags)
        {
            return PauseOrResume(false, options, tags);
        }

        /// <summary>Pauses as Pause() does, on a thread of the library.</summary>
        public GmmTicket PauseAsync(params GmmTag[] tags)
        {
            return PauseAsync(new GmmPauseOptions(), tags);
        }

        /// <summary>Pauses as Pause() does, on a thread of the library.</summary>
        public GmmTicket PauseAsync(GmmPauseOptions options, params GmmTag[] tags)
        {
            return new GmmTicket(handle, true, options, tags);
        }

        /// <summary>Resumes as Resume() does, on a thread of the library.</summary>
        public GmmTicket ResumeAsync(params GmmTag[] tags)
        {
            return ResumeAsync(new GmmPauseOptions(), tags);
        }

        /// <summary>Resumes as Resume() does, on a thread of the library, and reports the progress.</summary>
        public GmmTicket ResumeAsync(GmmProgress progress, params GmmTag[] tags)
        {
            return ResumeAsync(new GmmPauseOptions { Progress = progress }, tags);
        }

        /// <summary>Resumes as Resume() does, on a thread of the library, with options.</summary>
        public GmmTicket ResumeAsync(GmmPauseOptions options, params GmmTag[] tags)
        {
            return new GmmTicket(handle, false, options, tags);
        }

        /// <summary>
        /// Resumes what lies in the range, and what shares pages of the driver with it. Returns the bytes taken from
        /// the driver.
        /// </summary>
        public long ResumeRange(IntPtr address, long size)
        {
            Show.CheckSize("size", size);
            using (Use context = new Use(handle))
            {
                ulong bytes;
                Native.gmm_resume_range(context.Address, address, (ulong)size, out bytes);
                return (long)bytes;
            }
        }

        private long PauseOrResume(bool pause, GmmPauseOptions options, GmmTag[] tags)
        {
            using (Use context = new Use(handle))
            using (ProgressCall call = new ProgressCall(options.Progress))
            {
                byte[] desc = options.Encode(tags, call.User);
                ulong bytes = 0;
                try
                {
                    if (pause)
                    {
                        Native.gmm_pause(context.Address, desc, out bytes);
                    }
                    else
                    {
                        Native.gmm_resume(context.Address, desc, out bytes);
                    }
                }
                catch (GmmException)
                {
                    if (call.Thrown == null)
                    {
                        throw;
                    }
                    call.Thrown.Throw();
                }
                return (long)bytes;
            }
        }

        /// <summary>Configures where later pauses keep contents; null restores the defaults.</summary>
        public void SetBackup(GmmBackupOptions options)
        {
            using (Use context = new Use(handle))
            {
                Native.gmm_backup_configure(context.Address, options == null ? null : options.Encode());
            }
        }

        /// <summary>
        /// Page-locks memory for so many bytes of a device's contents in advance. The first pause is then as fast as
        /// later ones.
        /// </summary>
        public void PrepareBackup(int device, long bytes)
        {
            Show.CheckSize("bytes", bytes);
            using (Use context = new Use(handle))
            {
                Native.gmm_backup_reserve(context.Address, device, (ulong)bytes);
            }
        }

        /// <summary>The bytes of kept contents in each place.</summary>
        public GmmBackupInfo BackupInfo()
        {
            using (Use context = new Use(handle))
            {
                byte[] info = GmmBackupInfo.BytesForC();
                Native.gmm_backup_query(context.Address, info);
                return new GmmBackupInfo(info);
            }
        }

        /// <summary>
        /// Discards the kept contents of the tags' paused memory: after a resume the bytes are undefined. Without tags
        /// it covers every tag. Returns the number of bytes discarded.
        /// </summary>
        public long DiscardBackup(params GmmTag[] tags)
        {
            using (Use context = new Use(handle))
            {
                ulong bytes;
                Native.gmm_backup_discard(context.Address, new GmmPauseOptions().Encode(tags, IntPtr.Zero), out bytes);
                return (long)bytes;
            }
        }

        internal void DestroyTag(int tag)
        {
            using (Use context = new Use(handle))
            {
                Native.gmm_tag_destroy(context.Address, (uint)tag);
            }
        }

        internal void UpdateTag(int tag, GmmTagOptions options)
        {
            using (Use context = new Use(handle))
            {
                Native.gmm_tag_configure(context.Address, (uint)tag, options.Encode());
            }
        }

        /// <summary>
        /// Tells a handler what happens to memory or to a budget, until the watcher is disposed of. A cache of
        /// registrations lets go of memory in time, and takes its new pages.
        /// </summary>
        public GmmWatcher Watch(GmmWatchOptions options, GmmWatchHandler handler)
        {
            return new GmmWatcher(this.handle, options, handler);
        }

        /// <summary>
        /// Makes a lease. The call waits for nobody: the lease's thread finds the server of the machine, or starts it.
        /// </summary>
        public GmmLease Lease(GmmLeaseOptions options)
        {
            return new GmmLease(handle, options);
        }

        /// <summary>
        /// The leases of the machine: an entry for each device that a lease uses, and one for a lease that uses none.
        /// NotReady: no server runs, or none answers in this time.
        /// </summary>
        public IReadOnlyList<GmmLeaseEntryInfo> Leases(TimeSpan timeout)
        {
            Show.CheckSize("timeout", timeout.Ticks);
            List<GmmLeaseEntryInfo> found = new List<GmmLeaseEntryInfo>();
            using (Use context = new Use(handle))
            {
                byte[] entry = GmmLeaseEntryInfo.BytesForC();
                ulong milliseconds = (ulong)timeout.TotalMilliseconds;
                while (Native.gmm_lease_list(context.Address, (ulong)found.Count, milliseconds, entry)
                    == (int)GmmResult.Ok)
                {
                    found.Add(new GmmLeaseEntryInfo(entry));
                    entry = GmmLeaseEntryInfo.BytesForC();
                }
            }
            return found;
        }
    }
}
