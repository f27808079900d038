/* Preloaded into Chromium: no netlink, by which it hears of network interfaces that come and go. It drops what
 * it loads then (net::ERR_NETWORK_CHANGED), and Docker's tests make and remove some all the while. Without that
 * socket it takes the network to be there as it is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>

int socket(int domain, int type, int protocol) {
    static int (*next)(int, int, int);
    if (domain == AF_NETLINK) {
        errno = EAFNOSUPPORT;
        return -1;
    }
    if (!next) next = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
    return next(domain, type, protocol);
}
