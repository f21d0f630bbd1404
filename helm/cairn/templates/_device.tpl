{{/*
GPUs of a container, by its values "device": a limit of the device plugin, or a claim of the pod that
its containers share (resource.k8s.io).
*/}}

{{/* What the schema cannot say of the node's GPUs. */}}
{{- define "cairn.checkDevice" -}}
{{- if .Values.cache.device.ncclOnTrustedNetwork -}}
{{- if not .Values.cache.device.enabled -}}
{{- fail "cache.device.enabled: expected true, because cache.device.ncclOnTrustedNetwork=true moves blocks between GPUs" -}}
{{- end -}}
{{- if lt (int .Values.cache.replicas) 2 -}}
{{- fail (printf "cache.replicas: got %v, expected at least 2, because cache.device.ncclOnTrustedNetwork=true moves blocks between nodes" .Values.cache.replicas) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Memory beside a container's own: the driver, and buffers for copies. */}}
{{- define "cairn.driverMiB" -}}
{{ ternary 512 0 .enabled }}
{{- end -}}

{{/* MiB of /dev/shm for NCCL, which has 64 MiB otherwise. It counts as memory. */}}
{{- define "cairn.sharedMiB" -}}
{{ ternary 512 0 .Values.cache.device.ncclOnTrustedNetwork }}
{{- end -}}

{{- define "cairn.deviceLimit" -}}
{{- if and .enabled (not .claimTemplate) -}}
nvidia.com/gpu: {{ .gpus }}
{{- end -}}
{{- end -}}

{{- define "cairn.deviceClaim" -}}
{{- if and .enabled .claimTemplate -}}
claims: [{name: gpu}]
{{- end -}}
{{- end -}}

{{/* Of a pod. Call with (dict "devices" LIST), the values of its containers, which agree (cairn.checkWorker). */}}
{{- define "cairn.podDevice" -}}
{{- $claim := "" -}}
{{- $class := "" -}}
{{- range .devices -}}
{{- if .enabled -}}
{{- $claim = .claimTemplate | default $claim -}}
{{- $class = .runtimeClassName | default $class -}}
{{- end -}}
{{- end -}}
{{- with $class }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with $claim }}
resourceClaims: [{name: gpu, resourceClaimTemplateName: {{ . | quote }}}]
{{- end }}
{{- end -}}
