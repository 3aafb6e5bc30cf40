// Copyright (c) 2026, the lanewise authors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// Reads what the driver writes as its consumers do, and prints what they make of it as JSON.
//
//	consumer cdi DIR ID...   a container's OCI spec after a runtime has injected CDI devices
//	consumer metadata FILE   the DeviceMetadata that a workload decodes, validated
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

func injected(dir string, ids []string) (any, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, err
	}
	for _, found := range cache.GetErrors() {
		err = errors.Join(append(found, err)...)
	}
	if err != nil {
		return nil, err
	}
	spec := &oci.Spec{}
	_, err = cache.InjectDevices(spec, ids...)
	return spec, err
}

func decoded(file string) (any, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var object metadata.DeviceMetadata
	var invalid error
	stream := json.NewDecoder(bytes.NewReader(content))
	for stream.More() {
		err = devicemetadata.DecodeMetadataFromStream(
			stream, &object, devicemetadata.DecodeMetadataWithValidationResult(&invalid))
		if err = errors.Join(err, invalid); err != nil {
			return nil, err
		}
	}
	return object, nil
}

func main() {
	var result any
	err := errors.New("usage: consumer cdi DIR ID... | consumer metadata FILE")
	switch {
	case len(os.Args) > 3 && os.Args[1] == "cdi":
		result, err = injected(os.Args[2], os.Args[3:])
	case len(os.Args) == 3 && os.Args[1] == "metadata":
		result, err = decoded(os.Args[2])
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(result)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
