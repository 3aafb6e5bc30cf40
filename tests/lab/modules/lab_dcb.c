// SPDX-License-Identifier: GPL-2.0-only
/*
 * Copyright (c) 2026, the lanewise authors
 *
 * A test module: gives a driver's interfaces Data Center Bridging operations that only store the settings. So tests
 * check the requests to the kernel, not the behavior of hardware.
 *
 *   modprobe lab_dcb driver=igb
 */
#include <linux/dcbnl.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>
#include <net/dcbnl.h>

static char *driver = "igb";
module_param(driver, charp, 0444);
MODULE_PARM_DESC(driver, "name of the PCI driver whose interfaces get the operations");

struct settings {
	struct list_head list;
	struct net_device *dev;
	struct ieee_ets ets;
	struct ieee_pfc pfc;
	struct ieee_maxrate maxrate;
	struct dcbnl_buffer buffer;
	u8 dcbx;
};

static LIST_HEAD(all); /* protected by the rtnl lock, which all DCB requests hold */

static struct settings *settings_of(struct net_device *dev)
{
	struct settings *one;

	list_for_each_entry(one, &all, list)
		if (one->dev == dev)
			return one;
	return NULL;
}

#define KEEP(name, type, field)                                                                                        \
	static int get_##name(struct net_device *dev, struct type *value)                                              \
	{                                                                                                              \
		*value = settings_of(dev)->field;								       \
		return 0;                                                                                              \
	}                                                                                                              \
	static int set_##name(struct net_device *dev, struct type *value)                                              \
	{                                                                                                              \
		settings_of(dev)->field = *value;								       \
		return 0;                                                                                              \
	}

KEEP(maxrate, ieee_maxrate, maxrate)
KEEP(buffer, dcbnl_buffer, buffer)

static int get_ets(struct net_device *dev, struct ieee_ets *value)
{
	*value = settings_of(dev)->ets;
	return 0;
}

static int set_ets(struct net_device *dev, struct ieee_ets *value)
{
	int i, sum = 0, used = 0;

	for (i = 0; i < IEEE_8021QAZ_MAX_TCS; i++) {
		if (value->prio_tc[i] >= IEEE_8021QAZ_MAX_TCS)
			return -EINVAL;
		if (value->tc_tsa[i] != IEEE_8021QAZ_TSA_ETS)
			continue;
		used++;
		sum += value->tc_tx_bw[i];
	}
	if (used && sum != 100) /* hardware requires this, too */
		return -EINVAL;
	value->ets_cap = IEEE_8021QAZ_MAX_TCS;
	settings_of(dev)->ets = *value;
	return 0;
}

static int get_pfc(struct net_device *dev, struct ieee_pfc *value)
{
	*value = settings_of(dev)->pfc;
	return 0;
}

static int set_pfc(struct net_device *dev, struct ieee_pfc *value)
{
	value->pfc_cap = IEEE_8021QAZ_MAX_TCS;
	settings_of(dev)->pfc = *value;
	return 0;
}

static u8 get_dcbx(struct net_device *dev)
{
	return settings_of(dev)->dcbx;
}

static u8 set_dcbx(struct net_device *dev, u8 mode)
{
	if (mode & DCB_CAP_DCBX_LLD_MANAGED || !(mode & DCB_CAP_DCBX_VER_IEEE))
		return 1;
	settings_of(dev)->dcbx = mode;
	return 0;
}

static const struct dcbnl_rtnl_ops operations = {
	.ieee_getets = get_ets,
	.ieee_setets = set_ets,
	.ieee_getmaxrate = get_maxrate,
	.ieee_setmaxrate = set_maxrate,
	.ieee_getpfc = get_pfc,
	.ieee_setpfc = set_pfc,
	.getdcbx = get_dcbx,
	.setdcbx = set_dcbx,
	.dcbnl_getbuffer = get_buffer,
	.dcbnl_setbuffer = set_buffer,
};

static void attach(struct net_device *dev)
{
	struct settings *one;

	if (dev->dcbnl_ops || !dev->dev.parent || !dev->dev.parent->driver || strcmp(dev->dev.parent->driver->name, driver))
		return;
	one = kzalloc(sizeof(*one), GFP_KERNEL);
	if (!one)
		return;
	one->dev = dev;
	one->dcbx = DCB_CAP_DCBX_HOST | DCB_CAP_DCBX_VER_IEEE;
	one->ets.ets_cap = IEEE_8021QAZ_MAX_TCS;
	one->pfc.pfc_cap = IEEE_8021QAZ_MAX_TCS;
	list_add(&one->list, &all);
	dev->dcbnl_ops = &operations;
}

static void detach(struct settings *one)
{
	one->dev->dcbnl_ops = NULL;
	list_del(&one->list);
	kfree(one);
}

static int changed(struct notifier_block *block, unsigned long event, void *data)
{
	struct net_device *dev = netdev_notifier_info_to_dev(data);
	struct settings *one = settings_of(dev);

	if (event == NETDEV_REGISTER && !one)
		attach(dev);
	/* also sent when an interface moves to another network namespace */
	else if (event == NETDEV_UNREGISTER && one && dev->reg_state == NETREG_UNREGISTERING)
		detach(one);
	return NOTIFY_OK;
}

static struct notifier_block block = { .notifier_call = changed };

static int __init lab_dcb_init(void)
{
	return register_netdevice_notifier(&block); /* also notifies of existing interfaces */
}

static void __exit lab_dcb_exit(void)
{
	struct settings *one, *next;

	unregister_netdevice_notifier(&block);
	rtnl_lock();
	list_for_each_entry_safe(one, next, &all, list)
		detach(one);
	rtnl_unlock();
}

module_init(lab_dcb_init);
module_exit(lab_dcb_exit);
MODULE_DESCRIPTION("Store Data Center Bridging settings, for tests");
MODULE_LICENSE("GPL");
