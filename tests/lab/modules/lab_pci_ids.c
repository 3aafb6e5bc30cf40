// SPDX-License-Identifier: GPL-2.0-only
/*
 * Copyright (c) 2026, the lanewise authors
 *
 * A test module: shows other ids of PCI functions in sysfs while a driver is bound to them. Without a driver, they have
 * their real ids, so that drivers still match. The configuration space always has the real ids.
 *
 *   modprobe lab_pci_ids ids=1af4:1050=10de:2330:030200,8086:10c9=15b3:1021
 *
 * An entry is REAL_VENDOR:REAL_DEVICE=VENDOR:DEVICE[:CLASS], all hexadecimal.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/notifier.h>
#include <linux/pci.h>

#define ENTRIES 8

static char *ids[ENTRIES];
static int entries;
module_param_array(ids, charp, &entries, 0444);
MODULE_PARM_DESC(ids, "VENDOR:DEVICE=VENDOR:DEVICE[:CLASS], comma separated");

struct entry {
	u16 real_vendor, real_device, vendor, device;
	u32 class; /* 0: unchanged */
};

static struct entry table[ENTRIES];

static const struct entry *entry_of(struct pci_dev *dev)
{
	u16 vendor, device;
	int i;

	/* a VF has no ids in its configuration space, and the vendor of its PF */
	pci_read_config_word(pci_physfn(dev), PCI_VENDOR_ID, &vendor);
	pci_read_config_word(dev, PCI_DEVICE_ID, &device);
	for (i = 0; i < entries; i++) {
		if (table[i].real_vendor != vendor)
			continue;
		if (table[i].real_device == (dev->is_virtfn ? dev->device : device) ||
		    (dev->is_virtfn && table[i].device == dev->device))
			return &table[i];
	}
	return NULL;
}

static void show(struct pci_dev *dev, const struct entry *entry)
{
	dev->vendor = entry->vendor;
	dev->device = entry->device;
	if (entry->class)
		dev->class = entry->class;
}

static void restore(struct pci_dev *dev, const struct entry *entry)
{
	u32 class;

	dev->vendor = entry->real_vendor;
	dev->device = entry->real_device;
	if (entry->class && !pci_read_config_dword(dev, PCI_CLASS_REVISION, &class))
		dev->class = class >> 8;
}

static int changed(struct notifier_block *block, unsigned long event, void *data)
{
	struct pci_dev *dev = to_pci_dev(data);
	const struct entry *entry = entry_of(dev);

	if (!entry)
		return NOTIFY_DONE;
	if (event == BUS_NOTIFY_BOUND_DRIVER)
		show(dev, entry);
	else if (event == BUS_NOTIFY_UNBOUND_DRIVER || event == BUS_NOTIFY_ADD_DEVICE)
		restore(dev, entry);
	return NOTIFY_OK;
}

static struct notifier_block block = { .notifier_call = changed };

static int __init lab_pci_ids_init(void)
{
	struct pci_dev *dev = NULL;
	int i, found, error;

	for (i = 0; i < entries; i++) {
		found = sscanf(ids[i], "%hx:%hx=%hx:%hx:%x", &table[i].real_vendor, &table[i].real_device,
			       &table[i].vendor, &table[i].device, &table[i].class);
		if (found < 4) {
			pr_err("cannot read '%s'\n", ids[i]);
			return -EINVAL;
		}
	}
	error = bus_register_notifier(&pci_bus_type, &block);
	if (error)
		return error;
	for_each_pci_dev(dev) {
		const struct entry *entry = entry_of(dev);

		if (entry && dev->dev.driver)
			show(dev, entry);
	}
	return 0;
}

static void __exit lab_pci_ids_exit(void)
{
	struct pci_dev *dev = NULL;

	bus_unregister_notifier(&pci_bus_type, &block);
	for_each_pci_dev(dev) {
		const struct entry *entry = entry_of(dev);

		if (entry)
			restore(dev, entry);
	}
}

module_init(lab_pci_ids_init);
module_exit(lab_pci_ids_exit);
MODULE_DESCRIPTION("Show PCI functions under other ids, for tests");
MODULE_LICENSE("GPL");
