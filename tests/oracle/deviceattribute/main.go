// Copyright (c) 2026, the lanewise authors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// Command deviceattribute prints the attributes that Kubernetes' own helper derives for PCI functions of nodes.
//
// Each argument is a node's root directory. The output is one JSON object: root -> PCI address -> the attributes
// that the helper would publish, by their names without the domain. An attribute that it refuses is left out, and the
// reason is under "refused".
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/dynamic-resource-allocation/deviceattribute"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(roots []string) error {
	answer := map[string]map[string]map[string]any{}
	for _, root := range roots {
		functions := map[string]map[string]any{}
		entries, err := os.ReadDir(filepath.Join(root, "sys/bus/pci/devices"))
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		for _, entry := range entries {
			functions[entry.Name()] = describe(root, entry.Name())
		}
		answer[root] = functions
	}
	return json.NewEncoder(os.Stdout).Encode(answer)
}

func describe(root, address string) map[string]any {
	attributes := map[string]any{}
	refused := map[string]string{}
	add := func(name string, attribute deviceattribute.DeviceAttribute, err error) {
		if err != nil {
			refused[name] = err.Error()
			return
		}
		name = strings.TrimPrefix(string(attribute.Name), deviceattribute.StandardDeviceAttributePrefix)
		if value := attribute.Value.StringValue; value != nil {
			attributes[name] = *value
		}
		if value := attribute.Value.IntValue; value != nil {
			attributes[name] = *value
		}
	}
	sysfs := deviceattribute.WithFSFromRoot(filepath.Join(root, "sys"))
	busID, err := deviceattribute.GetPCIBusIDAttribute(address)
	add("pciBusID", busID, err)
	pcieRoot, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(address, sysfs)
	add("pcieRoot", pcieRoot, err)
	numaNode, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(address, deviceattribute.ScalarAttribute, sysfs)
	add("numaNode", numaNode, err)
	return map[string]any{"attributes": attributes, "refused": refused}
}
