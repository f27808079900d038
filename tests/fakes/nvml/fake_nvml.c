/* A stand-in for NVIDIA's libnvidia-ml.so.1: the real Python binding then sees cards that a text file
 * describes. Owns what the agent asks of a card; whatever else is asked is a function that is not found.
 *
 * FAKE_NVML names the file. It is read anew at each call, so a test may change it while an agent runs:
 *     driver=580.95.05
 *     gpu;uuid=GPU-1;name=NVIDIA L20;mem=46068;used=1024;util=7;temp=40;cc=8.9;mig=0
 *     gpu;uuid=GPU-2;lost=1;holders=4711:2048,4712:512
 *     gpu;uuid=GPU-3;link=1;root=2;untold=1
 * Memory in MiB. No file: no driver is loaded. An empty one: a driver without cards. lost=1: the card
 * has fallen off the bus, and every call about it says so. holders: process ids, each with its memory;
 * untold=1: the driver does not tell them. Cards of one link (not 0) are joined by NVLink; those of one root
 * are on one PCIe root, and without a root no question about places is offered.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 64
#define HOLDERS 16
#define MIB (1024ULL * 1024ULL)
enum answer { FINE = 0, BAD_ARGUMENT = 2, NOT_OFFERED = 3, BUFFER_SHORT = 7, NO_DRIVER = 9, CARD_LOST = 15 };

struct card {
    char uuid[96], name[96];
    unsigned util, temp, major, minor, mig, link, untold;
    unsigned long long mem, used;
    int lost, root;
    struct { unsigned pid; unsigned long long used; } holders[HOLDERS];
    unsigned holder_count;
};

static struct card cards[MOST];
static int card_count;
static char driver[80];
static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;

static void set_field(struct card *card, const char *name, const char *value) {
    if (!strcmp(name, "driver")) snprintf(driver, sizeof driver, "%s", value);
    if (!card) return;
    if (!strcmp(name, "uuid")) snprintf(card->uuid, sizeof card->uuid, "%s", value);
    if (!strcmp(name, "name")) snprintf(card->name, sizeof card->name, "%s", value);
    if (!strcmp(name, "mem")) card->mem = strtoull(value, NULL, 10) * MIB;
    if (!strcmp(name, "used")) card->used = strtoull(value, NULL, 10) * MIB;
    if (!strcmp(name, "util")) card->util = (unsigned)atoi(value);
    if (!strcmp(name, "temp")) card->temp = (unsigned)atoi(value);
    if (!strcmp(name, "mig")) card->mig = (unsigned)atoi(value);
    if (!strcmp(name, "lost")) card->lost = atoi(value);
    if (!strcmp(name, "link")) card->link = (unsigned)atoi(value);
    if (!strcmp(name, "root")) card->root = atoi(value);
    if (!strcmp(name, "untold")) card->untold = (unsigned)atoi(value);
    if (!strcmp(name, "holders")) {
        int taken = 0;
        unsigned long long mib;
        while (card->holder_count < HOLDERS &&
               sscanf(value, "%u:%llu%n", &card->holders[card->holder_count].pid, &mib, &taken) == 2) {
            card->holders[card->holder_count++].used = mib * MIB;
            value += taken + (value[taken] == ',');
        }
    }
    if (!strcmp(name, "cc")) sscanf(value, "%u.%u", &card->major, &card->minor);
}

/* A card keeps its place in the array, which is what a handle points to. */
static int read_file(void) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[1024];
    if (!file) return NO_DRIVER;
    card_count = 0;
    snprintf(driver, sizeof driver, "580.95.05");
    while (fgets(line, sizeof line, file)) {
        char *rest = NULL;
        struct card *card = NULL;
        line[strcspn(line, "\r\n")] = 0;
        for (char *word = strtok_r(line, ";", &rest); word; word = strtok_r(NULL, ";", &rest)) {
            char *equals = strchr(word, '=');
            if (equals) {
                *equals = 0;
                set_field(card, word, equals + 1);
            } else if (!strcmp(word, "gpu") && card_count < MOST) {
                card = &cards[card_count];
                memset(card, 0, sizeof *card);
                card->mem = 24576 * MIB;
                card->major = 8;
                card->root = -1;
                snprintf(card->name, sizeof card->name, "NVIDIA Fake");
                snprintf(card->uuid, sizeof card->uuid, "GPU-fake-%d", card_count++);
            }
        }
    }
    fclose(file);
    return FINE;
}

static int finish(int answer) {
    pthread_mutex_unlock(&reading);
    return answer;
}

static int begin(void) {
    pthread_mutex_lock(&reading);
    return read_file();
}

static int begin_with(const struct card *card) {
    int answer = begin();
    if (answer) return answer;
    if (card < cards || card >= cards + card_count) return BAD_ARGUMENT;
    return card->lost ? CARD_LOST : FINE;
}

static int put(char *out, unsigned room, const char *text) {
    if (strlen(text) >= room) return BUFFER_SHORT;
    strcpy(out, text);
    return FINE;
}

/* Answers about one card: `answer` is FINE there, and `card` may be read. */
#define ABOUT(card, fill)                \
    int answer = begin_with(card);       \
    if (answer == FINE) { fill; }        \
    return finish(answer)

int nvmlInitWithFlags(unsigned flags) { (void)flags; return finish(begin()); }
int nvmlInit_v2(void) { return finish(begin()); }
int nvmlShutdown(void) { return FINE; }
const char *nvmlErrorString(int answer) {
    return answer == CARD_LOST ? "GPU is lost" : answer == NO_DRIVER ? "Driver Not Loaded" : "refused by the fake";
}
int nvmlSystemGetDriverVersion(char *out, unsigned room) {
    int answer = begin();
    return finish(answer ? answer : put(out, room, driver));
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    int answer = begin();
    *count = answer ? 0 : (unsigned)card_count;
    return finish(answer);
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    int answer = begin();
    if (!answer && index >= (unsigned)card_count) answer = BAD_ARGUMENT;
    if (!answer && cards[index].lost) answer = CARD_LOST;
    if (!answer) *handle = &cards[index];
    return finish(answer);
}
int nvmlDeviceGetUUID(struct card *card, char *out, unsigned room) { ABOUT(card, answer = put(out, room, card->uuid)); }
int nvmlDeviceGetName(struct card *card, char *out, unsigned room) { ABOUT(card, answer = put(out, room, card->name)); }
int nvmlDeviceGetMemoryInfo(struct card *card, unsigned long long *total_free_used) {
    ABOUT(card, total_free_used[0] = card->mem; total_free_used[1] = card->mem - card->used;
          total_free_used[2] = card->used);
}
int nvmlDeviceGetUtilizationRates(struct card *card, unsigned *gpu_memory) {
    ABOUT(card, gpu_memory[0] = card->util; gpu_memory[1] = card->util / 2);
}
int nvmlDeviceGetTemperature(struct card *card, unsigned sensor, unsigned *degrees) {
    (void)sensor;
    ABOUT(card, *degrees = card->temp);
}
int nvmlDeviceGetTemperatureV(struct card *card, unsigned *version_sensor_degrees) {
    ABOUT(card, version_sensor_degrees[2] = card->temp);
}
int nvmlDeviceGetCudaComputeCapability(struct card *card, int *major, int *minor) {
    ABOUT(card, *major = (int)card->major; *minor = (int)card->minor);
}
int nvmlDeviceGetMigMode(struct card *card, unsigned *current, unsigned *pending) {
    ABOUT(card, *current = *pending = card->mig; if (card->major < 8) answer = NOT_OFFERED);
}

int nvmlDeviceGetP2PStatus(struct card *card, struct card *other, unsigned about, unsigned *status) {
    ABOUT(card, *status = about == 2 && card->link && card->link == other->link ? 0 : 5);
}
int nvmlDeviceGetTopologyCommonAncestor(struct card *card, struct card *other, unsigned *level) {
    ABOUT(card, *level = card->root == other->root ? 20 : 50;
          if (card->root < 0 || other->root < 0) answer = NOT_OFFERED);
}

struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };

int nvmlDeviceGetComputeRunningProcesses_v3(struct card *card, unsigned *room, struct process *out) {
    int answer = begin_with(card);
    unsigned had = *room;
    if (!answer && card->untold) answer = NOT_OFFERED;
    if (answer) return finish(answer);
    *room = card->holder_count;
    if (had < card->holder_count) return finish(BUFFER_SHORT);
    for (unsigned i = 0; i < card->holder_count; i++)
        out[i] = (struct process){card->holders[i].pid, card->holders[i].used, ~0u, ~0u};
    return finish(FINE);
}
