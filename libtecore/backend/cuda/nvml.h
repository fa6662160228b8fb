/* nvml.h - the part of NVIDIA's management library that reports NVLink domains of several nodes. */
#ifndef TE__NVML_H
#define TE__NVML_H

struct te__cuda_dev;
struct te__fabric_domain;

enum te__nvml_fabric_state {
	TE__NVML_FABRIC_NOT_SUPPORTED = 0,
	TE__NVML_FABRIC_NOT_STARTED = 1,
	TE__NVML_FABRIC_IN_PROGRESS = 2,
	TE__NVML_FABRIC_COMPLETED = 3,
};

/* nvmlGpuFabricInfo_t */
struct te__nvml_fabric {
	unsigned char cluster[16]; /* a UUID; 0: the domain has one node */
	int status;		   /* with COMPLETED: 0, or an error */
	unsigned int clique;
	unsigned char state;	   /* enum te__nvml_fabric_state */
};

struct te__nvml {
	int (*init)(void);
	int (*shutdown)(void);
	const char *(*error_string)(int code);
	int (*device)(const char *pci_address, void **ret_device);
	int (*fabric)(void *device, struct te__nvml_fabric *ret);
};

/* returns 0 and the domain if the device is in an NVLink domain of several nodes, in which GPUs of
 * one clique reach each other; else an error with the reason */
int te__nvml_domain(const struct te__cuda_dev *d, struct te__fabric_domain *ret_domain);
/* for tests, before any other call */
void te__nvml_fake(const struct te__nvml *fake);

#endif
