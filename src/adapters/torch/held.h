/* SPDX-License-Identifier: MIT */
/*
 * Lock guard for locks of the adapter that are held during calls of the library.
 *
 * While a history is recorded, a call of the library records a call stack, for which PyTorch's recorder acquires Python's lock
 * (the GIL).  Another thread may hold the GIL and wait for the lock of the adapter.  To avoid this deadlock, a thread that
 * holds such a lock records no stacks.  Its calls concern pools and exports, whose stacks are not needed.
 */
#ifndef XSEG_ADAPTERS_TORCH_HELD_H
#define XSEG_ADAPTERS_TORCH_HELD_H

#include <mutex>

namespace xseg_torch
{

/** The number of adapter locks that the calling thread holds. */
inline thread_local unsigned locks_held = 0;

/** A std::lock_guard that also counts the locks of the calling thread. */
template <class Mutex> class AdapterLock
{
  public:
    explicit AdapterLock(Mutex &mutex) : mutex_(mutex)
    {
        locks_held++;
        mutex_.lock();
    }
    ~AdapterLock()
    {
        mutex_.unlock();
        locks_held--;
    }
    AdapterLock(const AdapterLock &) = delete;
    AdapterLock &operator=(const AdapterLock &) = delete;

  private:
    Mutex &mutex_;
};

} // namespace xseg_torch

#endif
