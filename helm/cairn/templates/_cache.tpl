{{/* The node's settings, as the chart computes them. */}}
{{- define "cairn.cacheComputed" -}}
listen: 0.0.0.0:7400
admin:
  listen: 0.0.0.0:7401
  # For operators in the pod, with and without TLS: cairn stat --cache unix:/tmp/admin.sock.
  socket: /tmp/admin.sock
local:
  {{- if include "cairn.hasWorkerBeside" . }}
  # The socket of this pod's worker. A worker names its tenant when it opens its session.
  socket: /run/cairn/node.sock
  require_tenant: true
  {{- else }}
  # Pods share no folder, so nobody could use it. Containers that share the pod may: cache.config.local.
  socket: "off"
  {{- end }}
host:
  capacity: {{ .Values.cache.host.capacityMiB | int64 }}MiB
{{- if .Values.cache.disk.enabled }}
disk:
  path: /var/lib/cairn/disk
  capacity: {{ .Values.cache.disk.capacityMiB | int64 }}MiB
  flush_after: {{ .Values.cache.disk.flushAfter }}
  write_budget: {{ .Values.cache.disk.writeBudgetMiB | int64 }}MiB
  # A volume of a release before, whose node had chosen its own name, gets the pod's.
  take_over: true
{{- end }}
{{- if .Values.cache.device.enabled }}
device:
  capacity: {{ .Values.cache.device.capacityMiB | int64 }}MiB
{{- end }}
{{- if .Values.cache.device.ncclOnTrustedNetwork }}
link:
  enabled: true
  trusted_network: true
{{- end }}
{{- if gt (int .Values.cache.replicas) 1 }}
# Each pod's own name, host and address come with its command.
cluster:
  discovery: dns
  name: {{ .Values.cache.cluster.name | default .Release.Name | quote }}
  dns_names: [_grpc._tcp.{{ include "cairn.name" . }}-cache-peers.{{ .Release.Namespace }}.svc]
  memory: {{ .Values.cache.cluster.memoryMiB | int64 }}MiB
  {{- with .Values.cache.cluster.zone }}
  zone: {{ . | quote }}
  {{- end }}
  {{- $own := list (printf "%s/{node_id}" .Values.tls.certManager.uriPrefix) }}
  {{- with .Values.cache.cluster.peerIdentities | default (ternary $own list (include "cairn.certifiesPods" . | not | not)) }}
  peer_identities: {{ toJson . }}
  {{- end }}
  {{- if include "cairn.hasTls" . }}
  # Members dial each other by the pods' names, and certificates have the name of the Service.
  tls_server_name: {{ include "cairn.name" . }}-cache.{{ .Release.Namespace }}.svc
  {{- end }}
{{- end }}
{{- if include "cairn.hasPolicy" . }}
auth:
  policy: /etc/cairn/policy.yaml
{{- end }}
log:
  level: {{ .Values.cache.logLevel }}
  format: json
tls:
{{- if include "cairn.hasTls" . }}
  cert: /etc/cairn-tls/tls.crt
  key: /etc/cairn-tls/tls.key
  client_ca: /etc/cairn-tls/ca.crt
  {{- with .Values.tls.adminIdentities }}
  admin_identities: {{ toJson . }}
  {{- end }}
{{- else }}
  allow_plaintext_beyond_loopback: true
{{- end }}
{{- end -}}

{{- define "cairn.cacheConfig" -}}
{{- include "cairn.config" (dict "root" . "role" "cache" "computed" (include "cairn.cacheComputed" .)) -}}
{{- end -}}

{{/*
The node's container. Beside a worker it is a sidecar: it starts before the worker, and ends after it, when the
worker's last blocks have arrived.
*/}}
{{- define "cairn.cacheContainer" -}}
{{- $cache := .Values.cache -}}
{{- $memory := printf "%sMi" (include "cairn.cacheMemory" .) -}}
- name: cache
  image: {{ include "cairn.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- if include "cairn.hasWorkerBeside" . }}
  restartPolicy: Always
  {{- end }}
  command:
    - cairn-cache
    - --config=/etc/cairn/cache.yaml
    # A node that is alone has its pod's name too: a cluster may grow from it.
    - --node.id=$(POD_NAME)
    {{- if gt (int $cache.replicas) 1 }}
    - --cluster.host=$(POD_NODE)
    - --cluster.advertise=$(POD_NAME).{{ include "cairn.name" . }}-cache-peers.{{ .Release.Namespace }}.svc:7400
    {{- end }}
  env:
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    - name: POD_NODE
      valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
    {{- include "cairn.extraEnv" $cache | nindent 4 }}
  ports:
    - {name: grpc, containerPort: 7400}
    - {name: admin, containerPort: 7401}
  {{- include "cairn.announce" $cache | nindent 2 }}
  {{- include "cairn.probes" (dict "port" "admin" "startup" $cache.startupSeconds) | nindent 2 }}
  # The arena counts against the memory limit. Request and limit are equal: an OOM kill would look like a crash.
  resources:
    requests: {cpu: {{ $cache.cpu | quote }}, memory: {{ $memory }}}
    limits:
      memory: {{ $memory }}
      {{- with include "cairn.hugeMiB" . }}
      {{- if ne . "0" }}
      hugepages-2Mi: {{ . }}Mi
      {{- end }}
      {{- end }}
      {{- include "cairn.deviceLimit" $cache.device | nindent 6 }}
    {{- include "cairn.deviceClaim" $cache.device | nindent 4 }}
  securityContext: {{- include "cairn.containerSecurityContext" . | nindent 4 }}
  volumeMounts:
    - {name: config, mountPath: /etc/cairn, readOnly: true}
    - {name: sockets, mountPath: /tmp}
    {{- if ne (include "cairn.sharedMiB" .) "0" }}
    - {name: shared-memory, mountPath: /dev/shm}
    {{- end }}
    {{- if $cache.disk.enabled }}
    - {name: data, mountPath: /var/lib/cairn}
    {{- end }}
    {{- if include "cairn.hasTls" . }}
    - {name: tls, mountPath: /etc/cairn-tls, readOnly: true}
    {{- end }}
    {{- if include "cairn.hasWorkerBeside" . }}
    - {name: local, mountPath: /run/cairn}
    {{- end }}
    {{- include "cairn.extraMounts" $cache | nindent 4 }}
{{- end -}}

{{/* MiB of huge pages: what the arena takes; 0 without them. They do not count as memory. */}}
{{- define "cairn.hugeMiB" -}}
{{- $how := include "cairn.settingOr" (dict "settings" .Values.cache.config "key" "host.huge_pages" "default" "off") -}}
{{- if eq $how "try" -}}
{{- fail "cache.config.host.huge_pages: got try, expected off or require: a pod has only the huge pages that it asks Kubernetes for" -}}
{{- end -}}
{{- if eq $how "require" }}{{ mul (div (add (include "cairn.arenaMiB" .) 1) 2) 2 }}{{ else }}0{{ end -}}
{{- end -}}

{{/* Not "off": the node has the same-node path, for its worker or for other containers of its pod. */}}
{{- define "cairn.localSocket" -}}
{{- $computed := ternary "/run/cairn/node.sock" "off" (ne (include "cairn.hasWorkerBeside" .) "") -}}
{{- include "cairn.settingOr" (dict "settings" .Values.cache.config "key" "local.socket" "default" $computed) -}}
{{- end -}}

{{/* MiB of the arena. With the same-node path, segments that a client still maps stay for a while. */}}
{{- define "cairn.arenaMiB" -}}
{{- $capacity := .Values.cache.host.capacityMiB -}}
{{- add $capacity (ternary 0 (div (add $capacity 15) 16) (eq (include "cairn.localSocket" .) "off")) -}}
{{- end -}}

{{/* MiB of the node's container. */}}
{{- define "cairn.cacheMemory" -}}
{{- $cache := .Values.cache -}}
{{- $directory := ternary $cache.cluster.memoryMiB 0 (gt (int $cache.replicas) 1) -}}
{{- $arena := ternary 0 (include "cairn.arenaMiB" . | int) (ne (include "cairn.hugeMiB" .) "0") -}}
{{- /* docs/operate/operations.md, "Memory": each bound beside the arena, and memory that is freed and kept. */ -}}
{{- $sizes := dict "index.capacity" "256MiB" "limits.lease_memory" "64MiB" "limits.namespace_memory" "64MiB" "limits.fetch_headers" "32MiB" "limits.transfers" "64MiB" "rpc.memory" "512MiB" "watch.memory" "32MiB" "limits.session_memory" "128MiB" -}}
{{- if ne (include "cairn.settingOr" (dict "settings" $cache.config "key" "events.zmq" "default" "")) "" -}}
{{- $_ := set $sizes "events.memory" "64MiB" -}}
{{- end -}}
{{- $bounds := add (include "cairn.mebibytesOf" (dict "config" $cache.config "sizes" $sizes)) 100 (ternary 96 0 $cache.disk.enabled) -}}
{{- /* At least, what the process has taken already when it looks whether the rest fits. */ -}}
{{- $overhead := include "cairn.covers" (dict "name" "cache.overheadMiB" "given" $cache.overheadMiB "bounds" (add $bounds 32) "needed" (add $bounds 256)) -}}
{{- add $arena $overhead $directory (include "cairn.driverMiB" $cache.device) (include "cairn.sharedMiB" .) -}}
{{- end -}}

{{/*
MiB of the node's volume: the tier stays below 1.3 times its capacity and writes nothing when less than disk.min_free
is left; a twentieth is the file system's own. A StatefulSet that exists keeps its size, which cannot change.
*/}}
{{- define "cairn.volumeMiB" -}}
{{- $disk := .Values.cache.disk -}}
{{- $free := include "cairn.settingOr" (dict "settings" .Values.cache.config "key" "disk.min_free" "default" "256MiB") -}}
{{- $needed := div (mul (add (div (mul $disk.capacityMiB 13) 10) (include "cairn.mebibytes" $free)) 20) 19 -}}
{{- $needed = $disk.volumeMiB | default $needed | int64 -}}
{{- $name := printf "%s-cache" (include "cairn.name" .) -}}
{{- $old := lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-cache" (include "cairn.name" .)) -}}
{{- if $old -}}
{{- $claim := first $old.spec.volumeClaimTemplates -}}
{{- $unit := dict "Ki" "KiB" "Mi" "MiB" "Gi" "GiB" "Ti" "TiB" "" "B" -}}
{{- $size := $claim.spec.resources.requests.storage -}}
{{- $has := include "cairn.mebibytes" (printf "%s%s" (regexFind "^[0-9.]+" $size) (get $unit (regexFind "[A-Za-z]*$" $size))) -}}
{{- if lt (int $has) (int (div (mul $disk.capacityMiB 5) 4)) -}}
{{- fail (printf "cache.disk.capacityMiB: got %v, and the volumes of %s have %s: Kubernetes changes no size there (docs/operate/kubernetes.md, \"Growing a disk\")" $disk.capacityMiB $old.metadata.name $size) -}}
{{- end -}}
{{- $needed = $has -}}
{{- end -}}
{{- $needed -}}
{{- end -}}

{{/* What a StatefulSet cannot get or lose later. */}}
{{- define "cairn.checkVolumes" -}}
{{- $old := lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-cache" (include "cairn.name" .)) -}}
{{- $enabled := .Values.cache.disk.enabled -}}
{{- if and $old (ne $enabled (ne (len ($old.spec.volumeClaimTemplates | default list)) 0)) -}}
{{- fail (printf "cache.disk.enabled: got %v, and %s was made with %v: Kubernetes lets nobody change that (docs/operate/kubernetes.md, \"Growing a disk\")" $enabled $old.metadata.name (not $enabled)) -}}
{{- end -}}
{{- if and $old $enabled -}}
{{- $class := (first $old.spec.volumeClaimTemplates).spec.storageClassName | default "" -}}
{{- if ne $class .Values.cache.disk.storageClassName -}}
{{- fail (printf "cache.disk.storageClassName: got %s, and %s was made with %s: Kubernetes lets nobody change that (docs/operate/kubernetes.md, \"Growing a disk\")" (quote .Values.cache.disk.storageClassName) $old.metadata.name (quote $class)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
