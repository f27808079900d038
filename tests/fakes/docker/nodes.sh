#!/usr/bin/env bash
# Starts or stops N private Docker engines ("GPU nodes") on one machine. As root.
#
#   nodes.sh start N DIR [loopback|netns]
#   nodes.sh stop DIR
#
# Node i has DIR/node$i/docker.sock, its own data, containerd and bridge.
#   loopback: all in the host's network.
#   netns:    each in a network namespace of its own, reached from the host through a bridge; its
#             address is in DIR/node$i/ip, its namespace and link in DIR/node$i/names. Cut a node off
#             with `ip link set LINK down`.
# Names and addresses hold a tag made of DIR, so that two runs never meet.
# Needs docker.io, iptables and iproute2 of Debian. Touches no other dockerd.
set -euo pipefail

tag_of() { printf '%s' "$1" | cksum | awk '{printf "%04x", $1 % 65536}'; }
octet_of() { # the first of four, beginning with DIR's own, that no network of this machine has, also none left over
  local first step octet taken
  if [ ! -f "$1/octet" ]; then
    first=$(printf '%s' "$1" | cksum | awk '{print int($1 / 65536)}')
    taken=$(ip -4 addr show)  # no pipe into grep -q: it leaves at the first match, and the pipe fails then
    for step in $(seq 0 54); do
      octet=$(((first + step) % 55 * 4 + 20))
      grep -qE "inet 10\.21[34]\.($octet|$((octet + 1))|$((octet + 2))|$((octet + 3)))\." <<<"$taken" || break
    done
    echo "$octet" >"$1/octet"
  fi
  cat "$1/octet"
}

start_one() { # i dir mode
  local i=$1 d=$2/node$1 mode=$3 tag octet bridge ip pool="" run=()
  tag=$(tag_of "$2") octet=$(octet_of "$2")
  bridge=hb$tag$i
  mkdir -p "$d"
  if [ "$mode" = netns ]; then
    ip=10.213.$octet.$((10 + i))
    ip netns add "hn$tag$i"
    ip link add "hv$tag$i" type veth peer name eth0 netns "hn$tag$i"
    ip link set "hv$tag$i" master "hr$tag" up
    ip -n "hn$tag$i" link set lo up
    ip -n "hn$tag$i" addr add "$ip/24" dev eth0
    ip -n "hn$tag$i" link set eth0 up
    nsenter "--net=/var/run/netns/hn$tag$i" sysctl -qw net.ipv4.ip_forward=0
    # no two nodes' containers share an address, so that none takes a neighbour of its own for another node's
    pool="--default-address-pool base=10.215.$((i * 16)).0/20,size=27"
    # not `ip netns exec`: its fresh /sys hides the cgroups that dockerd needs
    run=(nsenter "--net=/var/run/netns/hn$tag$i")
  else
    ip=127.0.0.1
  fi
  # iptables off: engines that share one network would rewrite each other's rules, and docker-proxy
  # carries published ports. Forwarding off: containers of different networks cannot reach one another,
  # as with Docker's own rules. live-restore: containers outlive a killed dockerd.
  "${run[@]}" ip link add "$bridge" type bridge
  "${run[@]}" ip addr add "10.214.$((octet + i)).1/24" dev "$bridge"
  "${run[@]}" ip link set "$bridge" up
  # shellcheck disable=SC2016
  printf '%s\n' "${run[*]} dockerd --data-root $d/data --exec-root $d/exec -p $d/pid -H unix://$d/docker.sock \
--bridge $bridge --ip 127.0.0.1 --iptables=false --ip6tables=false --ip-masq=false --ip-forward=false \
$pool --live-restore --shutdown-timeout 5 --log-level warn" >"$d/command"
  echo "$mode $bridge hn$tag$i hv$tag$i hr$tag" >"$d/names"
  echo "$ip" >"$d/ip"
  launch "$d"
}

launch() { # dir of the node; also for starting a killed one again
  # shellcheck disable=SC2046
  setsid $(cat "$1/command") >>"$1/log" 2>&1 </dev/null &
  echo $! >"$1/started"
}

wait_one() { # dir of the node
  for _ in $(seq 600); do
    if curl -sf -m 2 --unix-socket "$1/docker.sock" http://d/_ping >/dev/null; then return 0; fi
    kill -0 "$(cat "$1/started")" 2>/dev/null || break
    sleep 0.1
  done
  tail -n 5 "$1/log" >&2
  return 1
}

end_rest() { # dir of the node: what a killed dockerd left (its containerd, containers' shims)
  local file
  for file in /proc/[0-9]*/cmdline; do
    if grep -qaF "$1/" "$file" 2>/dev/null; then
      file=${file#/proc/}
      [ "${file%/cmdline}" = $$ ] || kill -9 "${file%/cmdline}" 2>/dev/null || true
    fi
  done
}

case "${1:-}" in
start)
  n=$2 dir=$3 mode=${4:-loopback}
  if [ "$mode" = netns ]; then
    tag=$(tag_of "$dir")
    ip link add "hr$tag" type bridge
    ip addr add "10.213.$(octet_of "$dir").1/24" dev "hr$tag"
    ip link set "hr$tag" up
  fi
  for i in $(seq "$n"); do start_one "$i" "$dir" "$mode"; done
  for i in $(seq "$n"); do wait_one "$dir/node$i"; done
  ;;
restart) # one node whose dockerd was killed; the first try may not find its containerd in time
  for _ in 1 2 3; do
    rm -f "$2/pid"
    launch "$2"
    if wait_one "$2"; then exit 0; fi
    sleep 1
  done
  exit 1
  ;;
stop)
  dir=$2
  for d in "$dir"/node*; do # all at once: each takes some seconds
    if [ -S "$d/docker.sock" ] && [ -f "$d/pid" ]; then
      docker -H "unix://$d/docker.sock" ps -aq | xargs -r docker -H "unix://$d/docker.sock" rm -f >/dev/null || true
      docker -H "unix://$d/docker.sock" network prune -f >/dev/null || true
      kill "$(cat "$d/pid")" || true
    fi
  done
  for d in "$dir"/node*; do
    [ -f "$d/names" ] || continue
    read -r mode bridge space _ ring <"$d/names"
    for _ in $(seq 200); do [ -f "$d/pid" ] || break; sleep 0.1; done
    end_rest "$d"
    for m in $(awk -v d="$d/" 'index($2, d) == 1 {print $2}' /proc/mounts | sort -r); do umount "$m" || true; done
    if [ "$mode" = netns ]; then ip netns del "$space" || true; else ip link del "$bridge" || true; fi
    rm -rf "$d"
  done
  if [ "${mode:-}" = netns ]; then ip link del "$ring" || true; fi
  ;;
*)
  sed -n '2,15p' "$0"
  exit 2
  ;;
esac
