/* A closed-loop HTTP/1.1 client: one thread, epoll, kept connections, loopback only.
 *
 *   ./load PORT PATH CONNECTIONS SECONDS BODYFILE [KEY]
 *
 * Prints one JSON object. A reply counts (ok) only when it is whole, has status 200 and, for an event stream,
 * ends with [DONE]; all others are bad, lost connections err. Times in ms: p50 and p99 to the last byte of the
 * body, ttft to its first. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
enum { HEAD, FIXED, SIZE, DATA, CRLF_, TRAIL };
typedef struct { int fd, st, code, sse, nodata; size_t left, hl, so; char head[8192], size[24], tail[16]; long long t0, tf; int close; } Conn;
static char *req; static size_t reqlen; static int ep, port; static long ok, bad, err; static unsigned *lat, *tft; static size_t cap; static long long bytes;
static long long now_us(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000LL + t.tv_nsec / 1000; }
static void start(Conn *c) {
  c->st = HEAD; c->hl = c->left = c->so = 0; c->tf = 0; c->sse = 0; c->nodata = 0; memset(c->tail, 0, 16); c->t0 = now_us();
  for (size_t o = 0; o < reqlen;) { ssize_t n = send(c->fd, req + o, reqlen - o, MSG_NOSIGNAL); if (n > 0) o += n; else if (errno == EAGAIN) usleep(200); else return; }
}
static int conn(Conn *c) {
  int one = 1; struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  c->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(c->fd, (void *)&a, sizeof a)) { close(c->fd); c->fd = -1; return -1; }
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  struct epoll_event e = {EPOLLIN, {.ptr = c}}; epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
  start(c); return 0;
}
static void done(Conn *c) {
  int good = c->code == 200 && (!c->sse || strstr(c->tail, "[DONE]"));
  if (good) { if ((size_t)ok == cap) { cap = cap ? cap * 2 : 65536; lat = realloc(lat, cap * 4); tft = realloc(tft, cap * 4); } lat[ok] = now_us() - c->t0; tft[ok] = c->tf - c->t0; ok++; } else bad++;
  if (c->close) { close(c->fd); conn(c); } else start(c);
}
static void body(Conn *c, const char *p, size_t n) {
  if (!c->tf) c->tf = now_us();
  bytes += n;
  if (!c->sse) return;
  if (n >= 15) memcpy(c->tail, p + n - 15, 15); else { memmove(c->tail, c->tail + n, 15 - n); memcpy(c->tail + 15 - n, p, n); }
  for (int i = 0; i < 15; i++) if (!c->tail[i]) c->tail[i] = ' ';
}
static void feed(Conn *c, const char *p, size_t n) {
  const char *e = p + n; int fd = c->fd;
  while (p < e && c->fd == fd) switch (c->st) {
    case HEAD: {
      size_t k = e - p; if (k > sizeof c->head - 1 - c->hl) k = sizeof c->head - 1 - c->hl;
      size_t old = c->hl; memcpy(c->head + c->hl, p, k); c->hl += k; c->head[c->hl] = 0;
      char *z = strstr(c->head, "\r\n\r\n"); if (!z) { p += k; if (c->hl >= sizeof c->head - 1) { bad++; return; } break; }
      p += (z + 4 - c->head) - old; z[2] = 0; c->code = atoi(c->head + 9);
      if (c->code == 100) { c->hl = 0; break; }
      char *cl = strcasestr(c->head, "\ncontent-length:");
      c->close = strcasestr(c->head, "\nconnection: close") != 0; c->sse = strcasestr(c->head, "text/event-stream") != 0;
      if (strcasestr(c->head, "\ntransfer-encoding: chunked")) { c->st = SIZE; c->so = 0; }
      else if (cl) { c->left = strtoul(cl + 16, 0, 10); c->st = FIXED; if (!c->left) { done(c); return; } }
      else { bad++; c->st = FIXED; c->left = (size_t)-1; }
      break; }
    case FIXED: case DATA: { size_t k = e - p < (long)c->left ? (size_t)(e - p) : c->left; body(c, p, k); p += k; c->left -= k; if (!c->left) { if (c->st == FIXED) { done(c); return; } c->st = CRLF_; c->left = 2; } break; }
    case CRLF_: p++; if (!--c->left) { c->st = SIZE; c->so = 0; } break;
    case SIZE: if (*p != '\n') { if (c->so < 20) c->size[c->so++] = *p; p++; break; } p++; c->size[c->so] = 0; c->left = strtoul(c->size, 0, 16); c->st = c->left ? DATA : TRAIL; c->so = 0; break;
    case TRAIL: if (*p == '\n') { p++; if (c->so <= 1) { done(c); return; } c->so = 0; } else { c->so++; p++; } break;
  }
}
static int cmp(const void *a, const void *b) { unsigned x = *(unsigned *)a, y = *(unsigned *)b; return (x > y) - (x < y); }
int main(int argc, char **argv) {
  if (argc < 6) { fprintf(stderr, "usage: load PORT PATH CONNS SECONDS BODYFILE [KEY]\n"); return 2; }
  port = atoi(argv[1]); int nc = atoi(argv[3]); double secs = atof(argv[4]);
  FILE *f = fopen(argv[5], "rb"); if (!f) { perror(argv[5]); return 2; }
  fseek(f, 0, SEEK_END); size_t bl = ftell(f); rewind(f);
  req = malloc(bl + 2048);
  reqlen = sprintf(req, "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nAccept: */*\r\nContent-Length: %zu\r\n\r\n", argv[2], port, argc > 6 ? argv[6] : "none", bl);
  reqlen += fread(req + reqlen, 1, bl, f);
  ep = epoll_create1(0); Conn *cs = calloc(nc, sizeof(Conn)); char buf[262144]; struct epoll_event evs[512];
  long long t0 = now_us(), end = t0 + (long long)(secs * 1e6);
  for (int i = 0; i < nc; i++) if (conn(&cs[i])) err++;
  while (now_us() < end) {
    int n = epoll_wait(ep, evs, 512, 50);
    for (int i = 0; i < n; i++) {
      Conn *c = evs[i].data.ptr; if (c->fd < 0) continue; ssize_t r = recv(c->fd, buf, sizeof buf, MSG_DONTWAIT);
      if (r > 0) feed(c, buf, r); else if (r == 0 || errno != EAGAIN) { err++; close(c->fd); if (now_us() < end && conn(c)) { err++; usleep(1000); } }
    }
  }
  double el = (now_us() - t0) / 1e6; struct rusage u; getrusage(RUSAGE_SELF, &u);
  qsort(lat, ok, 4, cmp); qsort(tft, ok, 4, cmp);
#define P(a, q) (ok ? a[(size_t)((ok - 1) * q)] / 1000.0 : 0.0)
  printf("{\"ok\":%ld,\"bad\":%ld,\"err\":%ld,\"rps\":%.1f,\"p50\":%.3f,\"p99\":%.3f,\"ttft50\":%.3f,\"ttft99\":%.3f,\"mb\":%.1f,\"load_cpu\":%.3f}\n", ok, bad, err, ok / el, P(lat, .5), P(lat, .99), P(tft, .5), P(tft, .99), bytes / 1e6, u.ru_utime.tv_sec + u.ru_utime.tv_usec / 1e6 + u.ru_stime.tv_sec + u.ru_stime.tv_usec / 1e6);
}
