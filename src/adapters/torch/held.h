/* SPDX-License-Identifier: MIT */
/*
 * Locks of the adapter that are held over calls of the library.
 *
 * With history, a call of the library takes a stack, and PyTorch's recorder waits for Python's lock (the GIL) for that.
 * Another thread may hold the GIL and wait for the adapter's lock.  So a thread that holds one takes no stacks: the
 * calls that it makes meanwhile are about pools and exports, whose stacks nobody asks for.
 */
#ifndef XSEG_ADAPTERS_TORCH_HELD_H
#define XSEG_ADAPTERS_TORCH_HELD_H

#include <mutex>

namespace xseg_torch
{

/** How many such locks the calling thread holds. */
inline thread_local unsigned locks_held = 0;

/** Holds a lock, as std::lock_guard does. */
template <class Mutex> class Held
{
  public:
    explicit Held(Mutex &mutex) : mutex_(mutex)
    {
        locks_held++;
        mutex_.lock();
    }
    ~Held()
    {
        mutex_.unlock();
        locks_held--;
    }
    Held(const Held &) = delete;
    Held &operator=(const Held &) = delete;

  private:
    Mutex &mutex_;
};

} // namespace xseg_torch

#endif
