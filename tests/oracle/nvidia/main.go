// Copyright (c) 2026, the lanewise authors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// Command nvidia prints whether NVIDIA's DRA driver accepts opaque configurations and feature gates.
//
// Each line of the input is one JSON object: "gates" (all gates that are not named have their default), and
// "parameters", a configuration; without it only the gates are checked. Each gets one line of output with "error", which
// is empty if the driver's webhook accepts the configuration and the driver starts with these gates.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/featuregate"
	nvapi "sigs.k8s.io/dra-driver-nvidia-gpu/api/nvidia.com/resource/v1beta1"
	"sigs.k8s.io/dra-driver-nvidia-gpu/pkg/featuregates"
)

type question struct {
	Gates      map[string]bool `json:"gates"`
	Parameters json.RawMessage `json:"parameters"`
}

type answer struct {
	Error string `json:"error"`
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(input io.Reader, output io.Writer) error {
	defaults := map[string]bool{}
	for name, spec := range featuregates.FeatureGates().GetAll() {
		// gates of the logging library are not the driver's
		if !spec.LockToDefault {
			defaults[string(name)] = featuregates.Enabled(featuregate.Feature(name))
		}
	}
	decoder := json.NewDecoder(bufio.NewReader(input))
	encoder := json.NewEncoder(output)
	for {
		var query question
		if err := decoder.Decode(&query); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		var result answer
		if err := judge(query, defaults); err != nil {
			result.Error = err.Error()
		}
		if err := encoder.Encode(result); err != nil {
			return err
		}
	}
}

func judge(query question, defaults map[string]bool) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("panic: %v", fault)
		}
	}()
	if err := featuregates.FeatureGates().SetFromMap(defaults); err != nil {
		return err
	}
	if err := featuregates.FeatureGates().SetFromMap(query.Gates); err != nil {
		return err
	}
	if query.Parameters == nil {
		return featuregates.ValidateFeatureGates()
	}
	decoded, err := runtime.Decode(nvapi.StrictDecoder, query.Parameters)
	if err != nil {
		return err
	}
	config, ok := decoded.(nvapi.Interface)
	if !ok {
		return fmt.Errorf("%T is not a configuration", decoded)
	}
	if err := config.Normalize(); err != nil {
		return err
	}
	return config.Validate()
}
