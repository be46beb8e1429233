// SPDX-License-Identifier: Apache-2.0
// A doubly linked list whose links are part of its members, so linking cannot fail.
#ifndef GMM_BASE_LIST_H
#define GMM_BASE_LIST_H

#include "base/no_copy.h"

namespace gmm {

// A type may be in several lists at once: it derives from one Link<Tag> for each.
template <typename Tag>
struct Link {
  Link *previous = nullptr;
  Link *next = nullptr;
};

template <typename T, typename Tag>
class List : NoCopy {
 public:
  List() { head_.previous = head_.next = &head_; }

  bool empty() const { return head_.next == &head_; }
  T *front() { return empty() ? nullptr : from(head_.next); }
  T *next(T *item) {
    Link<Tag> *link = static_cast<Link<Tag> *>(item)->next;
    return link == &head_ ? nullptr : from(link);
  }
  void push_front(T *item) { insert(&head_, item); }
  void push_back(T *item) { insert(head_.previous, item); }
  // One of the two, without a branch: where neither is likelier, one in two would be mispredicted.
  void push(T *item, bool to_front) {
    Link<Tag> *const ends[2] = {head_.previous, &head_};
    insert(ends[to_front], item);
  }
  T *pop_front() {
    T *item = front();
    if (item != nullptr) remove(item);
    return item;
  }
  static void remove(T *item) {
    Link<Tag> *link = item;
    link->previous->next = link->next;
    link->next->previous = link->previous;
    link->previous = link->next = nullptr;
  }

 private:
  static T *from(Link<Tag> *link) { return static_cast<T *>(link); }
  static void insert(Link<Tag> *after, T *item) {
    Link<Tag> *link = item;
    link->previous = after;
    link->next = after->next;
    after->next->previous = link;
    after->next = link;
  }
  Link<Tag> head_;
};

}  // namespace gmm
#endif
