// The maps of the program in the kernel.
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "runtime/switch/xdp/layout.h"

struct slot {
  struct bpf_spin_lock lock;
  __u32 zero;
  struct nzcl_sets data;
};

struct home {
  struct bpf_spin_lock lock;
  struct nzcl_home data;
};

// The loader sets the sizes of all maps that grow with the number of pools.
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __type(key, struct nzcl_pool_key);
  __type(value, __u32);
  __uint(max_entries, 1);
} addresses SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __type(key, __u32);
  __type(value, struct nzcl_pool);
  __uint(max_entries, 1);
} pools SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __type(key, __u32);
  __type(value, struct nzcl_rank);
  __uint(max_entries, NZCL_MOST_RANKS);
} ranks SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __type(key, __u32);
  __type(value, struct slot);
  __uint(max_entries, 1);
} slots SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __type(key, __u32);
  __type(value, struct nzcl_state);
  __uint(map_flags, BPF_F_MMAPABLE);
  __uint(max_entries, 1);
} states SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __type(key, struct nzcl_home_key);
  __type(value, struct home);
  __uint(max_entries, NZCL_MOST_PORTS);
} homes SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_DEVMAP);
  __type(key, __u32);
  __type(value, struct bpf_devmap_val);
  __uint(max_entries, NZCL_MOST_PORTS);
} ports SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __type(key, __u32);
  __type(value, __u64);
  __uint(max_entries, NZCL_COUNTS);
} counts SEC(".maps");
