/* A stand-in for engines that speak OpenAI's API: one thread, epoll, kept connections.   ./mock PORT
 *
 * POST .../completions answers whole, or as "max_tokens" events (64 by default) where "stream" is true, with a
 * usage event where "include_usage" is true, then [DONE]. "seed": N waits N ms before each event, or before the
 * whole answer. Any other path answers 200 with a list of models; GET /stats counts requests, connections and
 * streams that were cut short. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#define MAXFD 8192
typedef struct { char *in; size_t len, cap; char *out; size_t olen, ooff, ocap; int left, usage, delay, sse; long long due; } Conn;
static Conn *conns[MAXFD];
static int ep;
static long n_req, n_acc, n_cut;
static long long now_us(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000LL + t.tv_nsec / 1000; }

static const char JSON[] = "{\"id\":\"chatcmpl-7f3a9c1e5b2d4f60\",\"object\":\"chat.completion\",\"created\":1767225600,\"model\":\"mock-upstream\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"The quick brown fox jumps over the lazy dog while the scheduler packs eight cards on every node, keeps the hot models where they already are, and leaves the biggest gaps free for whoever comes next in the queue tonight.\",\"refusal\":null,\"tool_calls\":[]},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}],\"usage\":{\"prompt_tokens\":24,\"total_tokens\":88,\"completion_tokens\":64,\"prompt_tokens_details\":null},\"prompt_logprobs\":null}";
static const char CHUNK[] = "data: {\"id\":\"chatcmpl-7f3a9c1e5b2d4f60\",\"object\":\"chat.completion.chunk\",\"created\":1767225600,\"model\":\"mock-upstream\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
static const char USAGE[] = "data: {\"id\":\"chatcmpl-7f3a9c1e5b2d4f60\",\"object\":\"chat.completion.chunk\",\"created\":1767225600,\"model\":\"mock-upstream\",\"choices\":[],\"usage\":{\"prompt_tokens\":24,\"total_tokens\":88,\"completion_tokens\":64}}\n\n";
static const char SSE[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
static const char DONE[] = "data: [DONE]\n\n";
static const char MODELS[] = "{\"object\":\"list\",\"data\":[{\"id\":\"mock-upstream\",\"object\":\"model\",\"created\":1767225600,\"owned_by\":\"mock\",\"root\":\"mock-upstream\",\"max_model_len\":32768}]}";

static void put(Conn *c, const void *p, size_t n) {
  if (c->ooff == c->olen) c->ooff = c->olen = 0;
  if (c->olen + n > c->ocap) { c->ocap = (c->olen + n) * 2; c->out = realloc(c->out, c->ocap); }
  memcpy(c->out + c->olen, p, n); c->olen += n;
}
static void put_chunk(Conn *c, const char *p, size_t n) { char h[16]; put(c, h, sprintf(h, "%zx\r\n", n)); put(c, p, n); put(c, "\r\n", 2); }
static void put_json(Conn *c, const char *p, size_t n) { char h[160]; put(c, h, sprintf(h, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n", n)); put(c, p, n); }
static void closec(int fd) { Conn *c = conns[fd]; if (c->left) n_cut++; close(fd); free(c->in); free(c->out); free(c); conns[fd] = 0; }
static int flush(int fd) {
  Conn *c = conns[fd];
  while (c->ooff < c->olen) {
    ssize_t n = send(fd, c->out + c->ooff, c->olen - c->ooff, MSG_NOSIGNAL);
    if (n < 0) { if (errno != EAGAIN) return -1; struct epoll_event e = {EPOLLIN | EPOLLOUT, {.fd = fd}}; epoll_ctl(ep, EPOLL_CTL_MOD, fd, &e); return 0; }
    c->ooff += n;
  }
  return 0;
}
static void step(Conn *c) { /* one due piece of a delayed or plain reply */
  if (!c->sse) { put_json(c, JSON, sizeof JSON - 1); c->left = 0; return; }
  do {
    put_chunk(c, CHUNK, sizeof CHUNK - 1);
    if (--c->left == 0) { if (c->usage) put_chunk(c, USAGE, sizeof USAGE - 1); put_chunk(c, DONE, sizeof DONE - 1); put(c, "0\r\n\r\n", 5); }
  } while (c->left && !c->delay);
}
static int num(const char *b, size_t n, const char *key, int dflt) { char *p = memmem(b, n, key, strlen(key)); return p ? atoi(p + strlen(key)) : dflt; }
static int has(const char *b, size_t n, const char *key) { char *p = memmem(b, n, key, strlen(key)); if (!p) return 0; p += strlen(key); while (*p == ' ') p++; return *p == 't'; }

static int parse(int fd) { /* 1: served one request, 0: need more */
  Conn *c = conns[fd];
  if (c->left || !c->len) return 0;
  c->in[c->len] = 0;
  char *e = memmem(c->in, c->len, "\r\n\r\n", 4);
  if (!e) return 0;
  size_t head = e + 4 - c->in, blen = 0, used;
  *e = 0; /* end the header block for strcasestr */
  char *cl = strcasestr(c->in, "\ncontent-length:"); int te = strcasestr(c->in, "\ntransfer-encoding:") != 0;
  if (strcasestr(c->in, "\nexpect: 100")) put(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
  *e = '\r';
  if (te) { char *z = memmem(c->in + head - 2, c->len - head + 2, "\r\n0\r\n\r\n", 7); if (!z) { return 0; } blen = z - (c->in + head); used = z + 7 - c->in; }
  else { if (cl) blen = strtoul(cl + 16, 0, 10); used = head + blen; if (c->len < used) return 0; }
  char *b = c->in + head;
  n_req++;
  if (strstr(c->in, "completions") && strstr(c->in, "completions") < e && c->in[0] == 'P') {
    c->sse = has(b, blen, "\"stream\":"); c->usage = has(b, blen, "\"include_usage\":"); c->delay = num(b, blen, "\"seed\":", 0);
    c->left = c->sse ? num(b, blen, "\"max_tokens\":", 64) : 1;
    if (c->left < 1) c->left = 64;
    if (c->sse) put(c, SSE, sizeof SSE - 1);
    if (c->delay) c->due = now_us() + c->delay * 1000LL; else step(c);
  } else if (!strncmp(c->in, "GET /stats", 10)) { char s[128]; put_json(c, s, sprintf(s, "{\"requests\":%ld,\"accepted\":%ld,\"cut\":%ld}", n_req, n_acc, n_cut)); }
  else put_json(c, MODELS, sizeof MODELS - 1);
  memmove(c->in, c->in + used, c->len - used); c->len -= used;
  return 1;
}
int main(int argc, char **argv) {
  int one = 1, ls = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 9000), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  setsockopt(ls, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(ls, (void *)&a, sizeof a) || listen(ls, 4096)) { perror("bind"); return 1; }
  ep = epoll_create1(0);
  struct epoll_event ev = {EPOLLIN, {.fd = ls}}, evs[512];
  epoll_ctl(ep, EPOLL_CTL_ADD, ls, &ev);
  for (;;) {
    long long t = now_us(), next = -1;
    for (int fd = 0; fd < MAXFD; fd++) { /* due pieces; a scan of a few hundred pointers is cheap */
      Conn *c = conns[fd];
      if (!c || !c->left || !c->delay) continue;
      if (c->due <= t) { step(c); c->due += c->delay * 1000LL; if (flush(fd) < 0) { closec(fd); continue; } while (parse(fd)) if (flush(fd) < 0) { closec(fd); break; } if (!conns[fd]) continue; }
      if (c->left && c->delay && (next < 0 || c->due < next)) next = c->due;
    }
    long long w = next < 0 ? -1 : next - now_us();
    int n = epoll_wait(ep, evs, 512, next < 0 ? 1000 : w < 0 ? 0 : (int)((w + 999) / 1000));
    for (int i = 0; i < n; i++) {
      int fd = evs[i].data.fd;
      if (fd == ls) { int s; while ((s = accept4(ls, 0, 0, SOCK_NONBLOCK)) >= 0) { if (s >= MAXFD) { close(s); continue; } n_acc++; setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); conns[s] = calloc(1, sizeof(Conn)); struct epoll_event e = {EPOLLIN, {.fd = s}}; epoll_ctl(ep, EPOLL_CTL_ADD, s, &e); } continue; }
      Conn *c = conns[fd];
      if (!c) continue;
      if (evs[i].events & EPOLLOUT) { if (flush(fd) < 0) { closec(fd); continue; } if (c->ooff == c->olen) { struct epoll_event e = {EPOLLIN, {.fd = fd}}; epoll_ctl(ep, EPOLL_CTL_MOD, fd, &e); } }
      if (!(evs[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) continue;
      if (c->cap < c->len + 65536) { c->cap = (c->len + 65536) * 2; c->in = realloc(c->in, c->cap + 1); }
      ssize_t r = recv(fd, c->in + c->len, c->cap - c->len, 0);
      if (r == 0 || (r < 0 && errno != EAGAIN)) { closec(fd); continue; }
      if (r > 0) { c->len += r; while (parse(fd)); if (flush(fd) < 0) closec(fd); }
    }
  }
}
