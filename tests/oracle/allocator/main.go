// Copyright (c) 2026, the lanewise authors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// Command allocator prints which devices the allocator of kube-scheduler picks on one node.
//
// Each line of the input is one JSON object: "claims" (specs of v1 ResourceClaims), "classes" (specs of v1
// DeviceClasses by name), "slices" (specs of v1 ResourceSlices of the node "node"), "held" (devices that other claims
// have: driver, pool, device, and consumedCapacity where it is shared) and "milliseconds", after which the search is
// ended. Each gets one line of output: "error" if the scheduler would stop scheduling the pod, "results", the devices
// of each claim, or neither if no devices were found; "late" if the time was over. "nanoseconds" is the CPU time of the
// thread that searched. It does not include decoding, encoding and the threads of the garbage collector.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

type question struct {
	Claims  []resourceapi.ResourceClaimSpec             `json:"claims"`
	Classes map[string]resourceapi.DeviceClassSpec      `json:"classes"`
	Slices  []resourceapi.ResourceSliceSpec             `json:"slices"`
	Held    []resourceapi.DeviceRequestAllocationResult `json:"held"`
	Millis  int                                         `json:"milliseconds"`
}

type answer struct {
	Error   string                                        `json:"error,omitempty"`
	Late    bool                                          `json:"late,omitempty"`
	Results [][]resourceapi.DeviceRequestAllocationResult `json:"results,omitempty"`
	Millis  int64                                         `json:"milliseconds"`
	Nanos   int64                                         `json:"nanoseconds"`
}

// The features that a scheduler of 1.37 has on by default; "incubating" is the allocator of all of them.
var features = structured.Features{
	AdminAccess:             true,
	PrioritizedList:         true,
	PartitionableDevices:    true,
	DeviceTaints:            true,
	DeviceBindingAndStatus:  true,
	ConsumableCapacity:      true,
	FractionalCapacityRange: true,
}

type classes map[string]*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, ok := c[name]; ok {
		return class, nil
	}
	return nil, fmt.Errorf("no class %s", name)
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(input io.Reader, output io.Writer) error {
	decoder := json.NewDecoder(bufio.NewReader(input))
	encoder := json.NewEncoder(output)
	cache := cel.NewCache(1000, cel.Features{EnableConsumableCapacity: true})
	for {
		var query question
		if err := decoder.Decode(&query); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := encoder.Encode(allocate(query, cache)); err != nil {
			return err
		}
	}
}

func allocate(query question, cache *cel.Cache) answer {
	lister := classes{}
	for name, spec := range query.Classes {
		lister[name] = &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	}
	var slices []*resourceapi.ResourceSlice
	for i, spec := range query.Slices {
		name := fmt.Sprintf("slice-%04d", i)
		slices = append(slices, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
	}
	var claims []*resourceapi.ResourceClaim
	for i, spec := range query.Claims {
		meta := metav1.ObjectMeta{Name: fmt.Sprintf("claim-%d", i), Namespace: "default"}
		claims = append(claims, &resourceapi.ResourceClaim{ObjectMeta: meta, Spec: spec})
	}
	millis := query.Millis
	if millis == 0 {
		millis = 10000
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(millis)*time.Millisecond)
	defer cancel()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin, processor := time.Now(), threadTime()
	allocator, err := structured.NewAllocator(ctx, features, taken(query), lister, slices, cache)
	if err != nil {
		return answer{Error: err.Error()}
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	results, err := allocator.Allocate(ctx, node, claims)
	reply := answer{Millis: time.Since(begin).Milliseconds(), Nanos: threadTime() - processor}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		reply.Late = true
	case err != nil:
		reply.Error = err.Error()
	default:
		for _, allocation := range results {
			reply.Results = append(reply.Results, allocation.Devices.Results)
		}
	}
	return reply
}

// threadTime returns the CPU time of this thread so far, in nanoseconds.
func threadTime() int64 {
	const thread = 1 // RUSAGE_THREAD
	var used syscall.Rusage
	if err := syscall.Getrusage(thread, &used); err != nil {
		return 0
	}
	return used.Utime.Nano() + used.Stime.Nano()
}

// taken returns the devices of the allocated claims in the form in which the scheduler collects them.
func taken(query question) structured.AllocatedState {
	shareable := map[structured.DeviceID]bool{}
	for _, slice := range query.Slices {
		for _, device := range slice.Devices {
			id := structured.MakeDeviceID(slice.Driver, slice.Pool.Name, device.Name)
			shareable[id] = device.AllowMultipleAllocations != nil && *device.AllowMultipleAllocations
		}
	}
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for i, held := range query.Held {
		id := structured.MakeDeviceID(held.Driver, held.Pool, held.Device)
		if !shareable[id] {
			state.AllocatedDevices.Insert(id)
			continue
		}
		share := types.UID(fmt.Sprintf("share-%d", i))
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, &share))
		if len(held.ConsumedCapacity) > 0 {
			capacity := map[resourceapi.QualifiedName]resource.Quantity(held.ConsumedCapacity)
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, capacity))
		}
	}
	return state
}
