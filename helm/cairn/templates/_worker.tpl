{{/* The worker's settings, as the chart computes them. */}}
{{- define "cairn.workerComputed" -}}
listen: 0.0.0.0:7500
admin:
  listen: 0.0.0.0:7501
model: {{ printf "/models/%s" .Values.worker.model.path | quote }}
arithmetic: {{ .Values.worker.arithmetic }}
threads: {{ .Values.worker.threads }}
kv_pool: {{ .Values.worker.kvPoolMiB | int64 }}MiB
{{- with .Values.worker.readPolicy }}
read_policy: {{ . | quote }}
kv_budget: {{ $.Values.worker.kvBudgetMiB | int64 }}MiB
{{- end }}
{{- if .Values.worker.device.enabled }}
# The first one of those that the container sees.
device: cuda:0
device_kv: {{ .Values.worker.device.kvMiB | int64 }}MiB
{{- end }}
cache:
  recipe: {{ .Values.worker.recipe | quote }}
  {{- $service := printf "%s-cache.%s.svc" (include "cairn.name" .) .Release.Namespace }}
  {{- if .Values.worker.besideNode }}
  # The node of this pod, whose socket for the same-node path is in a folder of both.
  address: 127.0.0.1:7400
  server_name: {{ $service }}
  {{- else if .Values.worker.cacheAddress }}
  address: {{ .Values.worker.cacheAddress | quote }}
  {{- else if not .Values.cache.enabled }}
  # No node: every prompt is computed.
  address: ""
  {{- else if gt (int .Values.cache.replicas) 1 }}
  # Each worker uses one node at a time. Certificates have the name of the Service for clients.
  address: dns:{{ include "cairn.name" . }}-cache-peers.{{ .Release.Namespace }}.svc:7400
  server_name: {{ $service }}
  {{- with .Values.cache.cluster.zone }}
  zone: {{ . | quote }}
  {{- end }}
  {{- else }}
  address: {{ $service }}:7400
  {{- end }}
{{- if include "cairn.hasPolicy" . }}
auth:
  policy: /etc/cairn/policy.yaml
{{- end }}
log:
  level: {{ .Values.worker.logLevel }}
  format: json
tls:
{{- if include "cairn.hasTls" . }}
  cert: /etc/cairn-tls/tls.crt
  key: /etc/cairn-tls/tls.key
  client_ca: /etc/cairn-tls/ca.crt
{{- else }}
  allow_plaintext_beyond_loopback: true
{{- end }}
{{- end -}}

{{- define "cairn.workerConfig" -}}
{{- include "cairn.config" (dict "root" . "role" "worker" "computed" (include "cairn.workerComputed" .)) -}}
{{- end -}}

{{/*
A template for each group of workers, whose values are then .Values.worker; without groups, for the workers. Call
with (dict "root" $ "template" NAME).
*/}}
{{- define "cairn.eachGroup" -}}
{{- $root := .root -}}
{{- $template := .template -}}
{{- $groups := $root.Values.worker.groups | default (dict "" (dict)) -}}
{{- range $name := keys $groups | sortAlpha }}
{{- $values := deepCopy $root.Values -}}
{{- $_ := mergeOverwrite $values.worker (deepCopy (index $groups $name)) (dict "group" $name) -}}
{{- $group := dict "Values" $values "Release" $root.Release "Chart" $root.Chart "Files" $root.Files -}}
{{- printf "\n%s" (include $template $group) }}
{{- end }}
{{- end -}}

{{/* The name of a group's objects, or of the workers'. */}}
{{- define "cairn.workerName" -}}
{{ include "cairn.name" . }}-{{ .Values.worker.group | default "worker" }}
{{- end -}}

{{/* The worker's container, in a pod of its own or in the node's. No two ports of a pod have the same name. */}}
{{- define "cairn.workerContainer" -}}
{{- $device := .Values.worker.device -}}
- name: worker
  image: {{ include "cairn.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [cairn-worker, --config, /etc/cairn-worker/worker.yaml]
  env:
    # If there are several cache nodes, the one on this machine is preferred.
    - name: CAIRN_CACHE_HOST
      valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
    {{- include "cairn.extraEnv" .Values.worker | nindent 4 }}
  ports:
    - {name: worker-grpc, containerPort: 7500}
    - {name: worker-admin, containerPort: 7501}
  {{- include "cairn.announce" .Values.worker | nindent 2 }}
  {{- include "cairn.probes" (dict "port" "worker-admin" "startup" .Values.worker.startupSeconds) | nindent 2 }}
  resources:
    {{- $memory := printf "%dMi" (add .Values.worker.memoryMiB (include "cairn.driverMiB" $device)) }}
    requests: {cpu: {{ .Values.worker.threads | quote }}, memory: {{ $memory }}}
    limits:
      memory: {{ $memory }}
      {{- include "cairn.deviceLimit" $device | nindent 6 }}
    {{- include "cairn.deviceClaim" $device | nindent 4 }}
  securityContext: {{- include "cairn.containerSecurityContext" . | nindent 4 }}
  volumeMounts:
    - {name: worker-config, mountPath: /etc/cairn-worker, readOnly: true}
    - {name: model, mountPath: /models, readOnly: true}
    {{- if .Values.worker.besideNode }}
    - {name: local, mountPath: /run/cairn, readOnly: true}
    {{- end }}
    {{- if include "cairn.hasTls" . }}
    - {name: worker-tls, mountPath: /etc/cairn-tls, readOnly: true}
    {{- end }}
    {{- include "cairn.extraMounts" .Values.worker | nindent 4 }}
{{- end -}}

{{/* What that container mounts, but for the node's socket. */}}
{{- define "cairn.workerVolumes" -}}
- name: worker-config
  configMap: {name: {{ include "cairn.workerName" . }}}
- name: model
  persistentVolumeClaim: {claimName: {{ .Values.worker.model.existingClaim | quote }}, readOnly: true}
{{- include "cairn.tlsVolume" (dict "root" . "role" "worker" "name" "worker-tls") }}
{{- include "cairn.extraVolumes" .Values.worker }}
{{- end -}}

{{/* Not empty: each node's pod has a worker. */}}
{{- define "cairn.hasWorkerBeside" -}}
{{- if and .Values.worker.enabled .Values.worker.besideNode .Values.cache.enabled }}beside{{ end -}}
{{- end -}}

{{/* Whose pods run workers. */}}
{{- define "cairn.workerPods" -}}
{{ ternary "cache" "worker" .Values.worker.besideNode }}
{{- end -}}

{{/* What the schema cannot say of the worker's values. */}}
{{- define "cairn.checkWorker" -}}
{{- if and .Values.worker.groups .Values.worker.besideNode -}}
{{- fail "worker.groups: expected none, because worker.besideNode=true: there is one worker in each node's pod" -}}
{{- end -}}
{{- if and .Values.worker.groups (not .Values.router.enabled) -}}
{{- fail "worker.groups: expected router.enabled=true: callers without a router would have to know the groups" -}}
{{- end -}}
{{- $requests := include "cairn.mebibytesOf" (dict "config" .Values.worker.config "sizes" (dict "rpc.requests" "256MiB")) -}}
{{- $sizes := dict "cache.push_queue" "1GiB" "parking" "256MiB" -}}
{{- $bounds := add .Values.worker.kvPoolMiB (mul 2 $requests) (include "cairn.mebibytesOf" (dict "config" .Values.worker.config "sizes" $sizes)) .Values.worker.kvBudgetMiB 128 -}}
{{- if lt (int .Values.worker.memoryMiB) (int $bounds) -}}
{{- fail (printf "worker.memoryMiB: got %d, expected at least %d and the model's weights: kvPoolMiB, kvBudgetMiB, cache.push_queue, parking, twice rpc.requests, and 128" (int .Values.worker.memoryMiB) (int $bounds)) -}}
{{- end -}}
{{- $node := .Values.cache.device -}}
{{- $worker := .Values.worker.device -}}
{{- if and .Values.worker.enabled $worker.enabled (eq (int $worker.gpus) 0) (not $worker.claimTemplate) -}}
{{- fail "worker.device.claimTemplate: expected a name, because worker.device.gpus=0" -}}
{{- end -}}
{{- if and .Values.worker.enabled $worker.enabled (ne .Values.worker.arithmetic "fast") -}}
{{- fail (printf "worker.arithmetic: got %s, expected fast, because worker.device.enabled=true" .Values.worker.arithmetic) -}}
{{- end -}}
{{- if and .Values.worker.enabled .Values.worker.besideNode -}}
{{- if .Values.worker.cacheAddress -}}
{{- fail (printf "worker.cacheAddress: got %s, expected nothing, because worker.besideNode=true: the worker uses the node of its pod" .Values.worker.cacheAddress) -}}
{{- end -}}
{{- if and $node.enabled $worker.enabled -}}
{{- if not $node.claimTemplate -}}
{{- fail "cache.device.claimTemplate: name one, because worker.besideNode=true: nvidia.com/gpu gives each container GPUs of its own, and a claim is shared" -}}
{{- end -}}
{{- if ne $node.claimTemplate $worker.claimTemplate -}}
{{- fail (printf "worker.device.claimTemplate: got %s, expected that of cache.device, %s, because worker.besideNode=true: node and worker share one claim" (quote $worker.claimTemplate) (quote $node.claimTemplate)) -}}
{{- end -}}
{{- if ne $node.runtimeClassName $worker.runtimeClassName -}}
{{- fail (printf "worker.device.runtimeClassName: got %s, expected that of cache.device, %s, because worker.besideNode=true: a pod has one" (quote $worker.runtimeClassName) (quote $node.runtimeClassName)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
