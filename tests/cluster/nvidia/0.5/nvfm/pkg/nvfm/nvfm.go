// Copyright (c) 2026, the lanewise authors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// Package nvfm stands in for NVIDIA's bindings of the fabric manager, which the Go module proxy does not serve. It has
// what NVIDIA's DRA driver refers to. The driver calls it for fabric partitions only, and each call fails here.
package nvfm

// Return is the result of a call.
type Return int

// SUCCESS is the result of a successful call. Every call of this package returns unavailable.
const (
	SUCCESS     Return = 0
	unavailable Return = -1
)

func (r Return) String() string {
	if r == SUCCESS {
		return "success"
	}
	return "the fabric manager is not available in this build"
}

// FabricPartitionId is the number of a partition.
type FabricPartitionId uint32

// FabricPartitionGpuInfo is a GPU of a partition.
type FabricPartitionGpuInfo struct {
	PhysicalId          uint32
	Uuid                [80]int8
	PciBusId            [32]int8
	NumNvLinksAvailable uint32
	MaxNumNvLinks       uint32
	NvlinkLineRateMBps  uint32
}

// FabricPartitionInfo is a partition.
type FabricPartitionInfo struct {
	PartitionId uint32
	IsActive    uint32
	NumGpus     uint32
	GpuInfo     [16]FabricPartitionGpuInfo
}

// FabricPartitionList holds the partitions that are supported.
type FabricPartitionList struct {
	NumPartitions uint32
	PartitionInfo [64]FabricPartitionInfo
}

// Interface is the library.
type Interface interface {
	Init() Return
	Shutdown() Return
	Connect(...ConnectOption) (Handle, Return)
}

// Handle is a connection.
type Handle interface {
	Disconnect() Return
	GetSupportedFabricPartitions() (FabricPartitionList, Return)
	ActivateFabricPartition(FabricPartitionId) Return
	DeactivateFabricPartition(FabricPartitionId) Return
}

// LibraryOption and ConnectOption are settings that nothing reads here.
type (
	LibraryOption func()
	ConnectOption func()
)

// WithLibraryPath and the functions below it make settings that nothing reads here.
func WithLibraryPath(string) LibraryOption { return func() {} }

func WithUnixSocket(string) ConnectOption { return func() {} }

func WithAddress(string) ConnectOption { return func() {} }

func WithTimeoutMs(uint32) ConnectOption { return func() {} }

type missing struct{}

// New returns a library that cannot be opened.
func New(...LibraryOption) Interface { return missing{} }

func (missing) Init() Return { return unavailable }

func (missing) Shutdown() Return { return unavailable }

func (missing) Connect(...ConnectOption) (Handle, Return) { return nil, unavailable }
