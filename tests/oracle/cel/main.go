// Copyright (c) 2026, the lanewise authors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// Command cel prints the verdict, cost and results of Kubernetes' own compiler for device selectors.
//
// Each line of the input is one JSON object: "expression", "features" (consumableCapacity, listTypeAttributes) and
// "devices", a list of {"driver": name, "device": Device of resource.k8s.io/v1}. Each gets one line of output:
// "error" if the API server would refuse the expression in a new object, or else "cost" (the estimated worst case, a
// string because it needs 64 bits) and "results", one for each device: true, false or an error text.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"
)

type question struct {
	Expression string `json:"expression"`
	Features   struct {
		ConsumableCapacity bool `json:"consumableCapacity"`
		ListTypeAttributes bool `json:"listTypeAttributes"`
	} `json:"features"`
	Devices []struct {
		Driver string             `json:"driver"`
		Device resourceapi.Device `json:"device"`
	} `json:"devices"`
}

type answer struct {
	Error   string `json:"error,omitempty"`
	Cost    string `json:"cost,omitempty"`
	Results []any  `json:"results,omitempty"`
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(input io.Reader, output io.Writer) error {
	decoder := json.NewDecoder(bufio.NewReader(input))
	writer := bufio.NewWriter(output)
	encoder := json.NewEncoder(writer)
	for {
		var query question
		if err := decoder.Decode(&query); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := encoder.Encode(judge(query)); err != nil {
			return err
		}
		if err := writer.Flush(); err != nil {
			return err
		}
	}
}

func judge(query question) answer {
	// What validation of a new object uses: pkg/apis/resource/validation, validateCELExpression
	envType := environment.NewExpressions
	compiled := cel.GetCompiler(cel.Features{
		EnableConsumableCapacity: query.Features.ConsumableCapacity,
		EnableListTypeAttributes: query.Features.ListTypeAttributes,
	}).CompileCELExpression(query.Expression, cel.Options{EnvType: &envType})
	if compiled.Error != nil {
		return answer{Error: compiled.Error.Error()}
	}
	reply := answer{Cost: strconv.FormatUint(compiled.MaxCost, 10)}
	for _, device := range query.Devices {
		matches, _, err := compiled.DeviceMatches(context.Background(), cel.Device{
			Driver:                   device.Driver,
			AllowMultipleAllocations: device.Device.AllowMultipleAllocations,
			Attributes:               device.Device.Attributes,
			Capacity:                 device.Device.Capacity,
		})
		if err != nil {
			reply.Results = append(reply.Results, err.Error())
		} else {
			reply.Results = append(reply.Results, matches)
		}
	}
	return reply
}
