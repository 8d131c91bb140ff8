// A frame with a packet of the switch exchange: its headers, and how its addresses are changed.
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "runtime/switch/xdp/layout.h"

#define HAS_VALUES 1

struct frame {
  struct ethhdr eth;
  struct iphdr ip;
  struct udphdr udp;
  struct nzcl_header header;
} __attribute__((packed));

static __always_inline struct frame* frame_of(struct xdp_md* ctx) {
  struct frame* const f = (void*)(long)ctx->data;
  return (void*)(f + 1) <= (void*)(long)ctx->data_end ? f : 0;
}

// Returns whether the frame has the ports of a UDP packet over IPv4 where struct frame has them: there are no
// options, and it is not a later fragment.
static __always_inline int has_ports(const struct frame* f) {
  return f->eth.h_proto == bpf_htons(ETH_P_IP) && f->ip.version == 4 && f->ip.ihl == 5 &&
         f->ip.protocol == IPPROTO_UDP && !(f->ip.frag_off & bpf_htons(0x1fff));
}

// Returns whether such a frame is one whole packet, without bytes behind its end.
static __always_inline int is_whole(struct xdp_md* ctx, const struct frame* f) {
  const __u64 bytes = ctx->data_end - ctx->data;
  return !(f->ip.frag_off & bpf_htons(0x2000)) && bpf_ntohs(f->ip.tot_len) + sizeof(struct ethhdr) == bytes &&
         bpf_ntohs(f->udp.len) + sizeof(struct ethhdr) + sizeof(struct iphdr) == bytes;
}

// Returns how many values the packet has, or -1 if its length does not fit its flags.
static __always_inline int values_of(struct xdp_md* ctx, const struct frame* f) {
  const __u64 bytes = ctx->data_end - ctx->data - sizeof *f;
  const int has_values = f->header.flags & HAS_VALUES;
  if (bytes % 4 != 0 || bytes > NZCL_MOST_VALUES * 4 || !!has_values != (bytes > 0)) return -1;
  return bytes / 4;
}

static __always_inline void sum_ip_header(struct iphdr* ip) {
  const __u16* const word = (const void*)ip;
  __u32 sum = 0;
  ip->check = 0;
#pragma unroll
  for (int i = 0; i < 10; ++i) sum += word[i];
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  ip->check = ~sum;
}

static __always_inline void swap_addresses(struct frame* f) {
  __u8 mac[6];
  __builtin_memcpy(mac, f->eth.h_dest, 6);
  __builtin_memcpy(f->eth.h_dest, f->eth.h_source, 6);
  __builtin_memcpy(f->eth.h_source, mac, 6);
  const __u32 host = f->ip.daddr;
  f->ip.daddr = f->ip.saddr;
  f->ip.saddr = host;
  const __u16 port = f->udp.dest;
  f->udp.dest = f->udp.source;
  f->udp.source = port;
}
